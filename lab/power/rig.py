"""Prepares a host with a rig: the read-only image of its distribution, its package sources and its hardware.

The lab calls four functions. `layers` builds the image that all hosts of a distribution share, `install` prepares one
host's disk and hardware, `plug_in` the hardware alone, and `power_on` does the firmware's work before every boot. `hw`
is the folder of the simulated hardware, /run/lab/hw in the host:

    board.conf archive-url name              written by plug_in
    boot sys proc initrd cmdline dmi meminfo cpufreq
                                             written by power_on, new at every boot; efivars with Secure Boot,
                                             infiniband with an adapter
    volatile nvram                           the state of driver and hardware (hw_state.py); power_on empties volatile
    kernel                                   kernel log, configuration spaces and huge pages of lab/simulators/kernelfs;
                                             the configuration spaces are stored in hw/../pci
"""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from lab.archive import repositories
from lab.base.distros import DEFAULT, distros
from lab.base.paths import CHECKOUT
from lab.hardware import boot_messages, cpufreq, dmi, hw_state, infiniband, pci
from lab.hardware.board import board_conf, model
from lab.hardware.rigfile import describe, node_of
from lab.host import initrd
from lab.power import mok, rig_layer
from lab.simulators.kernelfs import serve as kernelfs
from rigwright.core.errors import HostError

GUEST = CHECKOUT / "lab" / "simulators" / "guest_gpu"

SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
"""The name of the firmware's variable in efivarfs."""

CONTAINERS = {
    "storage.conf": "# Written by the lab: its hosts have no disk that the driver overlay could use.\n"
    '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n',
    "containers.conf": "# Written by the lab: its hosts may not limit devices or memory of a group.\n"
    '[containers]\ncgroups = "disabled"\nkeyring = false\n[engine]\nevents_logger = "none"\n',
}
"""The files of /etc/containers that podman needs on a host that is itself a container."""

Say = Callable[[str], None]


class Entry(Protocol):
    """The entry that GRUB boots."""

    @property
    def initrd(self) -> str | None: ...

    @property
    def command_line(self) -> str: ...


def layers(rig: str, cache: Path, base: Path, say: Say, distro: str = DEFAULT) -> list[Path]:
    """Returns the read-only images above `base`, topmost first.

    They are the same for every rig: the disk has no hardware data.
    """
    describe(rig)
    return [rig_layer.layer(cache, base, repositories.archive(cache, say), say, distros()[distro])]


def install(rig: str, name: str, root: Path, hw: Path, archive_url: str, distro: str = DEFAULT) -> None:
    """Sets the fresh disk's only package source, its distribution's archive, and plugs the hardware in."""
    plug_in(rig, name, hw, archive_url)
    etc = root / "etc/apt"
    for stale in (etc / "sources.list.d").glob("*"):
        stale.unlink()
    (etc / "sources.list").write_text(distros()[distro].sources(archive_url.rstrip("/")))
    containers = root / "etc/containers"
    containers.mkdir(exist_ok=True)
    for file, text in CONTAINERS.items():
        (containers / file).write_text(text)


def plug_in(rig: str, name: str, hw: Path, archive_url: str) -> None:
    """Writes the board description of the host with this name to `hw`, and an empty state of its hardware."""
    for folder in ("nvram", "volatile"):
        (hw / folder).mkdir(parents=True, exist_ok=True)
        (hw / folder).chmod(0o711)
    (hw / "nvram/nvram").touch()
    (hw / "archive-url").write_text(archive_url.rstrip("/") + "\n")
    (hw / "name").write_text(name + "\n")
    described = describe(rig, name)
    (hw / "board.conf").write_text(
        board_conf(described, {gpu["model"]: model(gpu["model"]) for gpu in described["gpus"]})
    )


def power_on(rig: str, root: Path, hw: Path, boot: Entry) -> list[boot_messages.Record]:
    """Switches the machine on: no driver is loaded, no device is bound, and the initrd is unpacked for hw/boot.

    Returns the kernel messages up to this point.
    """
    for name in ("sys", "proc", "initrd", "volatile", "flavours", "dmi", "cpufreq", "efivars", "infiniband"):
        shutil.rmtree(hw / name, ignore_errors=True)
    for name in ("sys", "proc", "volatile", "flavours"):
        (hw / name).mkdir()
        (hw / name).chmod(0o711 if name == "volatile" else 0o755)
    hw_state.switch_on(hw)
    passes_through = boot_messages.passes_through(boot.command_line)
    fresh = {"driver.loaded": "none", "boot.token": time.time_ns(), "iommu.translates": "" if passes_through else 1}
    hw_state.edit(hw, volatile=fresh)
    (hw / "volatile/clients").touch()
    (hw / "volatile/contexts").touch()
    (hw / "volatile/physics").touch()
    (hw / "volatile/modules").touch()
    for path in (hw / "volatile").iterdir():
        path.chmod(0o666 if path.name in ("clients", "contexts", "physics") else 0o644)
    (hw / "cmdline").write_text(boot.command_line + "\n")
    shutil.copyfile(GUEST / "boot", hw / "boot")
    (hw / "boot").chmod(0o755)
    described_rig, now = describe(rig), hw_state.values(hw)
    gpus = list(plugged_in("".join(f"{key}={value}\n" for key, value in now.items())))
    managed = now.get("management.absent", "0") == "0"
    roots = pci.tree(gpus, described_rig["pcie_levels"], switches(described_rig), managed=managed)
    domain = "identity" if passes_through else "DMA-FQ"
    pci.write(hw / "sys", roots, _spaces(hw), domain)
    names, memory, gone_gib = described_rig["dmi"], described_rig["memory"], int(now.get("memory.gone_gib", 0))
    modules = memory | {"speed_mt_s": int(now.get("memory.speed_mt_s", 0)) or memory["speed_mt_s"]}
    dmi.write(hw / "dmi", names, modules, dmi.identity_of((hw / "name").read_text().strip(), rig), gone_gib)
    cpufreq.write(hw / "cpufreq", described_rig["cpufreq"], cpufreq.cpus())
    if described_rig["infiniband"]:
        infiniband.write(hw / "infiniband", described_rig["infiniband"], infiniband.states(now))
    memory_kib = (memory["gib"] - gone_gib) << 20
    (hw / "meminfo").write_text(_meminfo(memory_kib))
    secure = now.get("secure_boot", "0") != "0"
    if secure:
        (hw / "efivars").mkdir()
        (hw / "efivars" / SECURE_BOOT).write_bytes(b"\6\0\0\0\1")
        mok.power_on(root, hw)
    for gpu, described in zip(gpus, described_rig["gpus"], strict=True):
        (hw / "flavours" / gpu.address).write_text(" ".join(model(described["model"])["module_flavours"]) + "\n")
    if boot.initrd is not None:
        try:
            initrd.unpack(_on_disk(root, boot.initrd), hw / "initrd", root)
        except HostError as damaged:
            print(damaged, flush=True)
            (hw / "dies").write_text("VFS: Unable to mount root fs on unknown-block(0,0)\n")
    return [
        *boot_messages.start(platform.release(), boot.command_line, dmi.line(names), memory_kib),
        boot_messages.SIMULATED,
        *(boot_messages.lockdown() if secure else ()),
        *boot_messages.iommu(boot.command_line),
        *boot_messages.pci(roots),
    ]


def _spaces(hw: Path) -> Path | None:
    """Creates and returns an empty folder for configuration spaces. Returns None when kernelfs cannot serve them."""
    folder = hw.parent / "pci"
    shutil.rmtree(folder, ignore_errors=True)
    if not ((hw / "kernel").is_dir() and kernelfs.available()):
        return None
    folder.mkdir()
    return folder


def _meminfo(total_kib: int) -> str:
    """Returns the /proc/meminfo of a machine that has just started, in the format that free and top read."""
    used = total_kib // 40
    rows = {
        "MemTotal": total_kib,
        "MemFree": total_kib - 2 * used,
        "MemAvailable": total_kib - used,
        "Buffers": used // 8,
    }
    rows |= {"Cached": used - used // 8} | dict.fromkeys(
        ("SwapCached", "SwapTotal", "SwapFree", "Shmem", "SReclaimable"), 0
    )
    return "".join(f"{name + ':':<15} {kib:>8} kB\n" for name, kib in rows.items())


def _on_disk(root: Path, path: str) -> Path:
    """Returns the path of the host's file on the machine, with links resolved as in the host.

    Raises HostError when it is no file or is outside the disk.
    """
    found = root / path.lstrip("/")
    for _ in range(8):
        if found.is_symlink():
            found = root / str(found.parent.relative_to(root) / found.readlink()).lstrip("/")
    if not found.is_file() or not found.resolve().is_relative_to(root.resolve()):
        raise HostError("initrd", f"no file {path}")
    return found


def plugged_in(board: str) -> Iterator[pci.PciGpu]:
    """Yields the PCI tree's values for each GPU, from the lines that the driver library reads, so that both agree."""
    values = hw_state.parse(board)
    for number in range(int(values["gpus"])):

        def of(key: str, default: str = "0", number: int = number) -> str:
            own = values.get(f"gpu{number}.{key}")
            return own or values.get(f"model.{values[f'gpu{number}.model']}.{key}") or default

        subsystem = int(of("pci_subsystem"), 16)
        yield pci.PciGpu(
            address=of("bus_id").lower(),
            device_id=int(of("pci_id"), 16),
            subsystem=(subsystem & 0xFFFF, subsystem >> 16),
            is_display=of("pci_subclass") == "0",
            numa_node=int(of("numa_node")),
            bar1_bytes=int(of("bar1_mib", "256")) << 20,
            generation=int(of("pcie.gen_max", "3")),
            width=int(of("pcie.width_max", "16")),
            generation_now=int(of("pcie.gen_now") or 0) or int(of("pcie.gen_max", "3")),
            width_now=int(of("pcie.width_now") or 0) or int(of("pcie.width_max", "16")),
            is_absent=of("absent") != "0",
            root_bus=int(of("root_bus", "-1"), 16),
            slot=(int(of("slot.generation")), int(of("slot.width"))) if of("slot.width") != "0" else None,
        )


def switches(described: dict[str, Any]) -> list[pci.PciSwitch]:
    """Returns the NVSwitches of a rig that lab.hardware.rigfile describes."""
    given, nodes = described["nvswitches"] or {"bus_ids": (), "pci_id": "0"}, described["nodes"]
    device_id = int(given["pci_id"], 16)
    found = [(address, node_of(address, nodes)) for address in given["bus_ids"]]
    return [pci.PciSwitch(address, device_id, node, int(nodes[node]["root"], 16)) for address, node in found]
