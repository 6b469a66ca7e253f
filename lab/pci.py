"""The PCI tree of a rig, as plain files in the kernel's own layout: sys/devices/pci*, sys/bus/pci, to be bound over sysfs.

lspci, setpci and lshw read nothing else. `config` is served by lab/kernelfs: 64 bytes for all but root, writes masked. Where
there is no FUSE it is a plain file: everybody may read all of it, and what setpci writes stays unmasked until the next boot.

GPUs that the rig's pcie_levels put at PIX or PXB of each other sit behind one PCIe switch, every other GPU behind a root
port of its own; NUMA node N has its root bus at 0x80 * N. Every board has its management controller's VGA (ASPEED).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from lab.pciconfig import Bar, Function, Link, config, writable

SPEED_OF_GENERATION = {
    1: "2.5 GT/s PCIe",
    2: "5.0 GT/s PCIe",
    3: "8.0 GT/s PCIe",
    4: "16.0 GT/s PCIe",
    5: "32.0 GT/s PCIe",
}
GIB, MIB = 1 << 30, 1 << 20
SERVED = "/run/lab/hw/kernel/config"
"""Where a host finds the configuration spaces that lab/kernelfs serves."""


@dataclass(frozen=True)
class PciGpu:
    """What the tree needs to know of one GPU."""

    address: str
    device_id: int
    subsystem: tuple[int, int]
    is_display: bool
    numa_node: int
    bar1_bytes: int
    generation: int
    width: int
    generation_now: int
    width_now: int
    is_absent: bool = False


@dataclass
class Node:
    """A function in the tree, with what hangs below its secondary bus."""

    function: Function
    numa_node: int
    below: list[Node] = field(default_factory=list)
    is_absent: bool = False


def tree(gpus: list[PciGpu], levels: dict[str, str]) -> list[tuple[str, list[Node]]]:
    """(domain:bus of a root bus, its functions) of the machine. `levels` is the rig's pcie_levels ("0-1": PIX)."""
    roots: dict[int, list[Node]] = {0: [_host_bridge(0, 0), _management()]}
    slots: dict[int, int] = {}
    irq = 24
    for group in _groups(len(gpus), levels):
        first = gpus[group[0]]
        numa = first.numa_node
        bus = 0x80 * numa
        functions = roots.setdefault(numa, [_host_bridge(bus, numa)])
        slots[numa] = slots.get(numa, 1) + 1
        port = f"0000:{bus:02x}:{slots[numa]:02x}.0"
        ends = [Node(_gpu(gpus[i], irq + i), numa, is_absent=gpus[i].is_absent) for i in group]
        buses = [int(gpus[i].address[5:7], 16) for i in group]
        if len(group) == 1:
            below, low = ends, buses[0]
        else:
            low = min(buses) - 2
            downstream = [
                Node(_bridge(f"0000:{low + 1:02x}:{8 * (n + 1):02x}.0", "downstream", end, b, b, first), numa, [end])
                for n, (end, b) in enumerate(zip(ends, buses, strict=True))
            ]
            below = [
                Node(_bridge(f"0000:{low:02x}:00.0", "upstream", None, low + 1, max(buses), first), numa, downstream)
            ]
        functions.append(
            Node(_bridge(port, "root", ends[0] if len(group) == 1 else None, low, max(buses), first), numa, below)
        )
    return [(f"0000:{0x80 * numa:02x}", functions) for numa, functions in sorted(roots.items())]


def _groups(count: int, levels: dict[str, str]) -> list[list[int]]:
    """The GPU numbers, those of one switch together, in order."""
    of = list(range(count))
    for pair, level in levels.items():
        if level in ("PIX", "PXB") and "-" in pair:
            a, b = (of[int(n)] for n in pair.split("-"))
            of = [min(a, b) if group in (a, b) else group for group in of]
    return [[i for i in range(count) if of[i] == group] for group in sorted(set(of))]


def _host_bridge(bus: int, numa: int) -> Node:
    return Node(Function(f"0000:{bus:02x}:00.0", 0x8086, 0x6F00, 0x060000, 0x8086, 0x0000, "host", revision=1), numa)


def _management() -> Node:
    """The management controller's VGA, directly on the first root bus."""
    bars = (Bar(0, 0x90000000, 16 * MIB, 0x40200), Bar(1, 0x91000000, 128 * 1024, 0x40200))
    return Node(
        Function("0000:00:1f.7", 0x1A03, 0x2000, 0x030000, 0x1A03, 0x2000, "conventional", bars, revision=0x30, irq=19),
        0,
    )


def _gpu(gpu: PciGpu, irq: int) -> Function:
    """Addresses follow from the bus number: 16 MiB of registers, BAR1 as large as the rig says, 32 MiB of BAR3."""
    bus = int(gpu.address[5:7], 16)
    prefetchable = 0x380000000000 + bus * (64 * GIB)
    bars = (
        Bar(0, 0x92000000 + bus * 16 * MIB, 16 * MIB, 0x40200),
        Bar(1, prefetchable, gpu.bar1_bytes, 0x14220C),
        Bar(3, prefetchable + 48 * GIB, 32 * MIB, 0x14220C),
        *((Bar(5, 0x3000 + bus * 0x40, 128, 0x40101),) if gpu.is_display else ()),
    )
    kind, clazz = ("legacy", 0x030000) if gpu.is_display else ("endpoint", 0x030200)
    return Function(
        gpu.address, 0x10DE, gpu.device_id, clazz, *gpu.subsystem, kind, bars, revision=0xA1, irq=irq,
        link=Link(gpu.generation, gpu.width, *((1, 0) if gpu.is_absent else (gpu.generation_now, gpu.width_now))),
    )  # fmt: skip


def _bridge(address: str, kind: str, end: Node | None, secondary: int, subordinate: int, like: PciGpu) -> Function:
    """A root port of the processor or a port of a PLX switch; its windows reach over the buses below it."""
    vendor, device = (0x8086, 0x6F08) if kind == "root" else (0x10B5, 0x8747)
    first, last = secondary, subordinate
    windows = (
        (0x3000 + first * 0x40 & 0xF000, (0x3000 + first * 0x40 & 0xF000) + 0xFFF) if like.is_display else (0, 0),
        (0x92000000 + first * 16 * MIB, 0x92000000 + (last + 1) * 16 * MIB - 1),
        (0x380000000000 + first * 64 * GIB, 0x380000000000 + (last + 1) * 64 * GIB - 1),
    )
    full = Link(like.generation, like.width, like.generation, like.width)
    return Function(
        address, vendor, device, 0x060400, vendor, 0x0000, kind, revision=1 if kind == "root" else 0xCA, irq=16,
        link=end.function.link if end else full, secondary=secondary, subordinate=subordinate, windows=windows,
    )  # fmt: skip


def write(sys: Path, roots: list[tuple[str, list[Node]]], spaces: Path | None = None) -> None:
    """The tree under `sys`, no driver bound anywhere.

    `spaces` is the folder from which lab/kernelfs serves the configuration spaces, None: each is a plain file.
    """
    bus = sys / "bus/pci"
    for name in ("devices", "drivers", "slots"):
        (bus / name).mkdir(parents=True)
    for name in ("rescan", "drivers_probe", "drivers_autoprobe"):
        (bus / name).write_text("1\n" if name == "drivers_autoprobe" else "")
    (sys / "module").mkdir()
    for root, functions in roots:
        folder = sys / "devices" / f"pci{root}"
        folder.mkdir(parents=True)
        for node in functions:
            _node(bus, folder, node, spaces)


def _node(bus: Path, folder: Path, node: Node, spaces: Path | None) -> None:
    """One function's folder, its link in bus/pci/devices, and everything below it; nothing of one that is not there."""
    f = node.function
    if node.is_absent:
        return
    here = folder / f.address
    here.mkdir()
    values = {
        "vendor": f"0x{f.vendor:04x}", "device": f"0x{f.device:04x}", "class": f"0x{f.clazz:06x}", "revision": f"0x{f.revision:02x}",
        "subsystem_vendor": f"0x{f.subvendor:04x}", "subsystem_device": f"0x{f.subdevice:04x}", "irq": str(f.irq),
        "numa_node": str(node.numa_node), "enable": "1", "broken_parity_status": "0", "dma_mask_bits": "47", "modalias": f.modalias,
        "resource": f.resource, "local_cpulist": f"0-{(os.cpu_count() or 1) - 1}", "uevent": f.uevent,
    }  # fmt: skip
    if f.link:
        values |= link_now(f.link)
        values |= {"max_link_speed": SPEED_OF_GENERATION[f.link.generation], "max_link_width": str(f.link.width)}
    if f.clazz == 0x030000:
        values["boot_vga"] = "1" if f.kind == "conventional" else "0"
    for name, text in values.items():
        (here / name).write_text(text + "\n")
    for name in ("remove", "rescan", "reset"):
        (here / name).write_text("")
    if spaces is None:
        (here / "config").write_bytes(config(f))
    else:
        (spaces / f.address).write_bytes(config(f) + writable(f))
        (here / "config").symlink_to(f"{SERVED}/{f.address}")
    (here / "subsystem").symlink_to(os.path.relpath(bus, here))
    (bus / "devices" / f.address).symlink_to(os.path.relpath(here, bus / "devices"))
    for child in node.below:
        _node(bus, here, child, spaces)


def link_now(link: Link) -> dict[str, str]:
    """What sysfs says of a link as it came up."""
    return {
        "current_link_speed": SPEED_OF_GENERATION[link.generation_now],
        "current_link_width": str(link.width_now),
    }
