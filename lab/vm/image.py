"""The disk image of virtual machines: a Debian server with its own kernel, built once into the cache.

mmdebstrap makes the tree, mke2fs puts it into a partition, and GRUB's own tools make the disk bootable in a first boot
under QEMU: no loop device, no mount. One image boots by BIOS, by UEFI and under Secure Boot.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.base import debian
from lab.base.lock import cache_lock
from lab.base.paths import VM_CACHE, folder
from lab.base.programs import run
from lab.vm import disk_layouts
from lab.vm.accelerator import accelerator
from lab.vm.disk_layouts import DISK_GIB, DiskLayout, second
from lab.vm.distributions import COMPONENTS, Distribution
from rigwright.core.errors import HostError

GUEST = Path(__file__).parent / "guest"
PACKAGES = (
    "systemd,systemd-sysv,dbus,udev,kmod,initramfs-tools,zstd,linux-image-amd64,grub-efi-amd64,grub-efi-amd64-signed,shim-signed,grub-pc-bin,"
    "dosfstools,efibootmgr,mokutil,openssh-server,sudo,python3,procps,iproute2,ca-certificates,gpgv,curl,pciutils,lshw,fdisk"
)
EFI_START_MIB, ROOT_START_MIB = 2, 66
PLAIN_TABLE = (
    "label: gpt\n"
    f"start=1MiB, size=1MiB, type=21686148-6449-6E6F-744E-656564454649\n"
    f"start={EFI_START_MIB}MiB, size={ROOT_START_MIB - EFI_START_MIB}MiB, type=U\n"
    f"start={ROOT_START_MIB}MiB, type=L\n"
)
"""Three partitions: BIOS boot, EFI, root."""

SOURCE_MIB = 4096
"""The size of the disk from which the tree of a layout copies itself."""

FIRST_BOOT_S = 900

NAMESPACE = uuid.UUID("6f3c2a52-5d0e-4d57-9f39-0d3b2e1d77a1")

Say = Callable[[str], None]


def path_of(distribution: Distribution, layout: DiskLayout | None = None) -> Path:
    """Returns the path of an image of the current recipe, which may not be built yet."""
    parts = [distribution.suite, PACKAGES, str(DISK_GIB), *(path.read_text() for path in sorted(GUEST.iterdir()))]
    name = distribution.name
    if layout is not None:
        parts += [
            ",".join(disk_layouts.PACKAGES),
            layout.table(),
            layout.script,
            (disk_layouts.FILES / "first-boot").read_text(),
        ]
        name = f"{name}-{layout.name}"
    return VM_CACHE / f"{name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:12]}.raw"


def image(distribution: Distribution, say: Say, layout: DiskLayout | None = None) -> Path:
    """Returns the path of the release's image (raw, sparse), and first builds it when the cache has none of the current
    recipe.

    `layout`: how the disk is divided; None for one ext4 file system. That of a second disk is second(PATH).
    """
    built = path_of(distribution, layout)
    folder(VM_CACHE, 0o700)
    with cache_lock(VM_CACHE, built.stem, say):
        if not built.is_file():
            _need_room(built)
            say(
                f"Building the image of {distribution.name} virtual machines, once: 3 to 6 minutes, "
                f"300 MB of downloads, 1 GB in {VM_CACHE}."
            )
            started = time.monotonic()
            _build(distribution, built, say) if layout is None else _build_layout(distribution, layout, built, say)
            say(f"Image built in {time.monotonic() - started:.0f} s.")
    return built


def _need_room(built: Path) -> None:
    """Raises HostError when the file system of the cache has no room for a build: a tree and an image."""
    free_mib = shutil.disk_usage(folder(built.parent)).free >> 20
    if free_mib < 4096:
        raise HostError(
            "lab",
            f"{free_mib} MiB are free for {built.parent}",
            "4096 MiB for the image of a virtual machine",
            "free some room",
        )


def _build(distribution: Distribution, built: Path, say: Say) -> None:
    tree, partial = built.with_suffix(".tree"), built.with_suffix(".partial")
    run(["rm", "-rf", "--one-file-system", tree, partial], deadline=300)
    root_uuid = str(uuid.uuid5(NAMESPACE, built.name))
    efi_uuid = hashlib.sha256(root_uuid.encode()).hexdigest()[:8].upper()
    _tree(distribution, tree, PACKAGES, [root_uuid, f"{efi_uuid[:4]}-{efi_uuid[4:]}"], say)
    _partition(partial)
    _file_systems(partial, tree, root_uuid, efi_uuid)
    _first_boot([partial], tree, root_uuid, say)
    run(["rm", "-rf", "--one-file-system", tree], deadline=300)
    partial.with_suffix(".log").unlink(missing_ok=True)
    partial.rename(built)


def _build_layout(distribution: Distribution, layout: DiskLayout, built: Path, say: Say) -> None:
    """Builds the disks of a layout: the release's source boots, makes the file systems and copies itself there."""
    source = _source(distribution, say)
    partial, script = built.with_suffix(".partial"), built.with_suffix(".layout")
    disks = [partial, second(partial)][: layout.disks]
    run(["rm", "-f", *disks], deadline=300)
    for disk in disks:
        _partition(disk, layout.table())
    script.write_text(layout.script)
    options = ["-drive", f"file={source / 'disk.raw'},format=raw,if=virtio,snapshot=on"]
    options += ["-fw_cfg", f"name=opt/rigwright/layout,file={script}"]
    _first_boot(disks, source, _uuid(source), say, options)
    script.unlink()
    partial.with_suffix(".log").unlink(missing_ok=True)
    for disk in disks[1:]:
        disk.rename(second(built))
    partial.rename(built)


def _source(distribution: Distribution, say: Say) -> Path:
    """Returns the folder of what every layout's first boot runs from, and first builds it: disk.raw, a kernel and an
    initramfs in boot/."""
    parts = [distribution.suite, PACKAGES, ",".join(disk_layouts.PACKAGES)]
    parts += [path.read_text() for path in (*sorted(GUEST.iterdir()), disk_layouts.FILES / "first-boot")]
    made = VM_CACHE / f"{distribution.name}-source-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:12]}"
    with cache_lock(VM_CACHE, made.name, say):
        if made.is_dir():
            return made
        tree, partial = made.with_suffix(".tree"), made.with_suffix(".partial")
        run(["rm", "-rf", "--one-file-system", tree, partial], deadline=300)
        _tree(distribution, tree, ",".join((PACKAGES, *disk_layouts.PACKAGES)), [_uuid(made), "0000-0000"], say)
        shutil.copy(disk_layouts.FILES / "first-boot", tree / "first-boot")
        (tree / "first-boot").chmod(0o755)
        (partial / "boot").mkdir(parents=True)
        for path in (*(tree / "boot").glob("vmlinuz-*"), *(tree / "boot").glob("initrd.img-*")):
            shutil.copy(path, partial / "boot")
        argv: list[str | Path] = ["mke2fs", "-q", "-F", "-t", "ext4", "-U", _uuid(made), "-d", tree]
        run([*argv, partial / "disk.raw", f"{SOURCE_MIB}m"], deadline=600)
        run(["rm", "-rf", "--one-file-system", tree], deadline=300)
        partial.rename(made)
    return made


def _uuid(path: Path) -> str:
    """Returns the UUID of the root file system of an image in the cache."""
    return str(uuid.uuid5(NAMESPACE, path.name))


def _tree(distribution: Distribution, tree: Path, packages: str, uuids: Sequence[str], say: Say) -> None:
    """Installs Debian in `tree`, and makes it a server; `uuids` are those of its root and EFI file systems."""
    debian.bootstrap(tree, distribution.suite, packages, say)
    shutil.copytree(GUEST, tree / "lab-vm")
    mirror = debian.mirror(distribution.suite) or _mirror_of(tree)
    say("  making it a server that boots from its own disk")
    debian.in_chroot(
        tree, ["/bin/sh", "/lab-vm/build", mirror, distribution.suite, COMPONENTS, *uuids, debian.proxy()], say
    )


def _mirror_of(tree: Path) -> str:
    """Returns the mirror that mmdebstrap chose."""
    return (tree / "etc/apt/sources.list").read_text().split()[1]


def _partition(disk: Path, table: str = PLAIN_TABLE) -> None:
    """Writes an empty disk with the partitions of a table of sfdisk."""
    with disk.open("wb") as file:
        file.truncate(DISK_GIB << 30)
    run(["sfdisk", "--quiet", disk], stdin=table)


def _file_systems(disk: Path, tree: Path, root_uuid: str, efi_uuid: str) -> None:
    """Makes the file systems inside the disk's file; the root one is filled with the tree."""
    efi_kib = (ROOT_START_MIB - EFI_START_MIB) << 10
    efi = disk.with_suffix(".efi")
    run(["mkfs.vfat", "-n", "EFI", "-i", efi_uuid, "-C", efi, str(efi_kib)])
    run(["dd", f"if={efi}", f"of={disk}", "bs=1M", f"seek={EFI_START_MIB}", "conv=notrunc,sparse", "status=none"])
    efi.unlink()
    size_mib = (DISK_GIB << 10) - ROOT_START_MIB - 1  # the last MiB holds the second partition table
    options = f"offset={ROOT_START_MIB << 20},lazy_itable_init=0,lazy_journal_init=0"
    run(
        [
            "mke2fs",
            "-q",
            "-F",
            "-t",
            "ext4",
            "-L",
            "root",
            "-U",
            root_uuid,
            "-E",
            options,
            "-d",
            tree,
            disk,
            f"{size_mib}m",
        ],
        deadline=600,
    )


def _first_boot(disks: Sequence[Path], tree: Path, root_uuid: str, say: Say, options: Sequence[str] = ()) -> None:
    """Boots the tree's kernel directly with `first-boot` as its first process, and waits until the machine is off.

    `disks` are the machine's /dev/vda and so on; `options` are more of QEMU's. Its console is in the log beside the
    first disk.
    """
    kernel, initrd = sorted((tree / "boot").glob("vmlinuz-*"))[-1], sorted((tree / "boot").glob("initrd.img-*"))[-1]
    log = disks[0].with_suffix(".log")
    line = f"root=UUID={root_uuid} rw console=ttyS0,115200 init=/first-boot panic=-1 no_timer_check quiet"
    argv = ["qemu-system-x86_64", "-machine", "q35", *accelerator().options, "-smp", "2", "-m", "1024"]
    argv += ["-nodefaults", "-display", "none", "-no-reboot", "-serial", f"file:{log}", "-device", "virtio-rng-pci"]
    for disk in disks:
        argv += ["-drive", f"file={disk},format=raw,if=virtio,cache=unsafe,discard=unmap"]
    argv += [*options, "-kernel", str(kernel), "-initrd", str(initrd), "-append", line]
    say("  installing GRUB in a first boot under QEMU")
    log.unlink(missing_ok=True)
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FIRST_BOOT_S, check=False
    )
    text = log.read_text(errors="replace") if log.exists() else ""
    if "first boot: done" not in text:
        last = " / ".join((text or done.stderr).strip().splitlines()[-4:])
        raise HostError(
            "lab", f"the image's first boot failed: {last}", "GRUB installed by its own tools", f"read {log}"
        )
