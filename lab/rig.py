"""Makes a plain Debian 12 host into a GPU server: Ubuntu by name or Debian, GPUs on its PCI bus, two package archives.

The lab calls four functions: archive and layers build what all hosts of a rig share, install furnishes one host's disk, and
power_on plays the firmware before every boot. `hw` is the simulated hardware, in the host at /run/lab/hw:

    board.conf archive-url name              written by install
    boot sys proc initrd cmdline dmi meminfo written by power_on, new at every boot; efivars with Secure Boot
    volatile nvram                           the state of driver and hardware (hwstate.py); volatile is emptied by power_on
    kernel                                   the kernel log and configuration spaces of lab/kernelfs; those lie in hw/../pci
"""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import yaml

from lab import archive as archives
from lab import bootlog, dmi, hwstate, initrd, layer, pci
from lab.board import board_conf
from lab.distros import DEFAULT, distros
from lab.kernelfs import serve as kernelfs
from lab.paths import CHECKOUT
from lab.rigfile import describe, node_of
from rigwright.errors import HostError

GPUS = CHECKOUT / "rigwright" / "catalogue" / "gpus"
GUEST = Path(__file__).resolve().parent / "guest_gpu"

PANIC = """#!/bin/sh
echo '{}'
echo 'Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)'
exec sleep infinity
"""
"""What a host does instead of booting when its initrd is damaged: it says so on the console and hangs, as in life."""

SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
"""The firmware's variable, as it is named in efivarfs."""

Say = Callable[[str], None]
archive = archives.archive


class Entry(Protocol):
    """The GRUB entry that boots."""

    @property
    def initrd(self) -> str | None: ...

    @property
    def command_line(self) -> str: ...


def layers(rig: str, cache: Path, base: Path, say: Say, distro: str = DEFAULT) -> list[Path]:
    """The read-only images above `base`, topmost first. Every rig has the same ones: hardware is not on the disk."""
    describe(rig)
    return [layer.layer(cache, base, archive(cache, say), say, distros()[distro])]


def install(rig: str, name: str, root: Path, hw: Path, archive_url: str, distro: str = DEFAULT) -> None:
    """The fresh disk knows its distribution's archive alone; `hw` holds the board description and the first boot's script."""
    url = archive_url.rstrip("/")
    for folder in ("nvram", "volatile"):
        (hw / folder).mkdir(parents=True, exist_ok=True)
        (hw / folder).chmod(0o711)
    (hw / "nvram/nvram").touch()
    (hw / "archive-url").write_text(url + "\n")
    (hw / "name").write_text(name + "\n")
    described = describe(rig, name)
    (hw / "board.conf").write_text(
        board_conf(described, {gpu["model"]: model(gpu["model"]) for gpu in described["gpus"]})
    )
    etc = root / "etc/apt"
    for stale in (etc / "sources.list.d").glob("*"):
        stale.unlink()
    (etc / "sources.list").write_text(distros()[distro].sources(url))


def power_on(rig: str, root: Path, hw: Path, boot: Entry) -> list[bootlog.Record]:
    """The machine is switched on: no driver is loaded, no device bound, and the initrd's content lies ready for hw/boot.

    Returns what the kernel says until then.
    """
    for name in ("sys", "proc", "initrd", "volatile", "flavours", "dmi", "efivars"):
        shutil.rmtree(hw / name, ignore_errors=True)
    for name in ("sys", "proc", "volatile", "flavours"):
        (hw / name).mkdir()
        (hw / name).chmod(0o711 if name == "volatile" else 0o755)
    hwstate.switch_on(hw)
    hwstate.edit(hw, volatile={"driver.loaded": "none", "boot.token": time.time_ns()})
    (hw / "volatile/clients").touch()
    (hw / "volatile/contexts").touch()
    (hw / "volatile/modules").touch()
    for path in (hw / "volatile").iterdir():
        path.chmod(0o666 if path.name in ("clients", "contexts") else 0o644)
    (hw / "cmdline").write_text(boot.command_line + "\n")
    shutil.copyfile(GUEST / "boot", hw / "boot")
    (hw / "boot").chmod(0o755)
    described_rig, now = describe(rig), hwstate.values(hw)
    gpus = list(plugged_in("".join(f"{key}={value}\n" for key, value in now.items())))
    roots = pci.tree(gpus, described_rig["pcie_levels"], switches(described_rig))
    domain = "identity" if bootlog.passes_through(boot.command_line) else "DMA-FQ"
    pci.write(hw / "sys", roots, _spaces(hw), domain)
    names, memory, gone_gib = described_rig["dmi"], described_rig["memory"], int(now.get("memory.gone_gib", 0))
    dmi.write(hw / "dmi", names, memory, (hw / "name").read_text().strip(), gone_gib)
    memory_kib = (memory["gib"] - gone_gib) << 20
    (hw / "meminfo").write_text(_meminfo(memory_kib))
    secure = now.get("secure_boot", "0") != "0"
    if secure:
        (hw / "efivars").mkdir()
        (hw / "efivars" / SECURE_BOOT).write_bytes(b"\6\0\0\0\1")
    for gpu, described in zip(gpus, described_rig["gpus"], strict=True):
        (hw / "flavours" / gpu.address).write_text(" ".join(model(described["model"])["module_flavours"]) + "\n")
    if boot.initrd is not None:
        try:
            initrd.unpack(_on_disk(root, boot.initrd), hw / "initrd", root)
        except HostError as damaged:
            (hw / "boot").write_text(PANIC.format(damaged))
    return [
        *bootlog.start(platform.release(), boot.command_line, dmi.line(names), memory_kib),
        *(bootlog.lockdown() if secure else ()),
        *bootlog.iommu(boot.command_line),
        *bootlog.pci(roots),
    ]


def _spaces(hw: Path) -> Path | None:
    """The empty folder from which configuration spaces are served; None when nobody serves them."""
    folder = hw.parent / "pci"
    shutil.rmtree(folder, ignore_errors=True)
    if not ((hw / "kernel").is_dir() and kernelfs.available()):
        return None
    folder.mkdir()
    return folder


def _meminfo(total_kib: int) -> str:
    """/proc/meminfo of a machine that has just started, as free and top read it."""
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
    """That file of the host, its links followed as the host would. Raises HostError when it is none or leaves the disk."""
    found = root / path.lstrip("/")
    for _ in range(8):
        if found.is_symlink():
            found = root / str(found.parent.relative_to(root) / found.readlink()).lstrip("/")
    if not found.is_file() or not found.resolve().is_relative_to(root.resolve()):
        raise HostError("initrd", f"no file {path}")
    return found


@lru_cache(maxsize=64)
def model(name: str) -> dict[str, Any]:
    """A GPU model of the catalogue; not to be changed."""
    found: dict[str, Any] = yaml.safe_load((GPUS / f"{name}.yml").read_text(encoding="utf-8"))
    return found


def plugged_in(board: str) -> Iterator[pci.PciGpu]:
    """What the PCI tree needs of each GPU, out of the lines that the driver library reads, so that both agree."""
    values = hwstate.parse(board)
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
    """The NVSwitches of a rig as lab.rigfile describes it."""
    given, nodes = described["nvswitches"] or {"bus_ids": (), "pci_id": "0"}, described["nodes"]
    device_id = int(given["pci_id"], 16)
    found = [(address, node_of(address, nodes)) for address in given["bus_ids"]]
    return [pci.PciSwitch(address, device_id, node, int(nodes[node]["root"], 16)) for address, node in found]
