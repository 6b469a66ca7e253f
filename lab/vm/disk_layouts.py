"""How the disks of a virtual machine are divided: `lab.up --vm --disk NAME`.

The default, plain, is one ext4 file system. A layout here is data: the partitions, and a shell file in disks/ that
makes and mounts the file systems in the first boot. Partition 1 is GRUB's own on a GPT disk, partition 2
is the EFI system partition, so that one image boots by BIOS and by UEFI.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rigwright.core.errors import UsageError

DISK_GIB = 16
"""The size of each disk; the files are sparse."""

FILES = Path(__file__).parent / "disks"
PLAIN = "plain"

PACKAGES = ("lvm2", "mdadm", "btrfs-progs")
"""Debian's packages for the file systems of all layouts: every machine that is not plain has them, as Ubuntu Server
has."""

BIOS_BOOT = "21686148-6449-6E6F-744E-656564454649"
EFI = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
LINUX = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
LVM = "E6D6D379-F507-44C2-A23C-238F2A3DF928"
RAID = "A19D880F-05FC-4D3B-A006-743F0F84911E"


@dataclass(frozen=True)
class Partition:
    """A partition of a GPT disk: its type, and its size in MiB; None takes what is left."""

    type: str
    size_mib: int | None = None


COMMON = (Partition(BIOS_BOOT, 1), Partition(EFI, 64))


@dataclass(frozen=True)
class DiskLayout:
    """A division of disks. All `disks` have the same partitions.

    `grubenv_on` is what holds /boot/grub/grubenv: GRUB can write there only in a file system that lies directly on a
    partition, so only then can a boot be tried once.
    """

    name: str
    title: str
    partitions: tuple[Partition, ...]
    grubenv_on: str
    disks: int = 1

    @property
    def script(self) -> str:
        """The shell functions prepare and finish, which the first boot calls."""
        return (FILES / self.name).read_text()

    def table(self) -> str:
        """The input of sfdisk for one disk."""
        lines, start_mib = ["label: gpt"], 1
        for number, partition in enumerate(self.partitions, 1):
            size = f", size={partition.size_mib}MiB" if partition.size_mib is not None else ""
            lines.append(f"{number}: start={start_mib}MiB{size}, type={partition.type}")
            start_mib += partition.size_mib or 0
        return "\n".join(lines) + "\n"


LAYOUTS = {
    layout.name: layout
    for layout in (
        DiskLayout(
            "boot",
            "/boot of 512 MiB on its own partition, / in a logical volume: the default of Ubuntu Server's installer",
            (*COMMON, Partition(LINUX, 512), Partition(LVM)),
            "ext4 on a partition",
        ),
        DiskLayout(
            "lvm",
            "/ in a logical volume, with /boot in it",
            (*COMMON, Partition(LVM)),
            "a logical volume",
        ),
        DiskLayout(
            "btrfs",
            "/ in the subvolume @rootfs of a btrfs, with /boot in it: what Debian's installer makes",
            (*COMMON, Partition(LINUX)),
            "btrfs",
        ),
        DiskLayout(
            "raid1",
            "/ on a mirror (md) of two disks, with /boot in it; GRUB is on both",
            (*COMMON, Partition(RAID)),
            "an md array",
            disks=2,
        ),
    )
}


def layout(name: str | None) -> DiskLayout | None:
    """Returns the layout with that name; None for the plain one. Raises UsageError for an unknown name."""
    if name is None or name == PLAIN:
        return None
    if name not in LAYOUTS:
        raise UsageError("lab.up", f"--disk {name}", " or ".join((PLAIN, *LAYOUTS)), "invoke lab.up --help")
    return LAYOUTS[name]


def second(first: Path) -> Path:
    """Returns the path of an image's second disk, beside the first."""
    return first.with_name(f"{first.stem}-second{first.suffix}")
