"""Writes the PCI tree of a rig as plain files in the kernel's layout (sys/devices/pci*, sys/bus/pci), for bind mounts
over sysfs.

lspci, setpci and lshw read only these files. lab/simulators/kernelfs serves `config`: users other than root read 64
bytes, and writes are masked. Without FUSE, `config` is a plain file: every user can read all of it, and writes of
setpci are not masked and stay until the next boot.

GPUs with the PCIe level PIX share one PCIe switch. GPUs with PXB are behind a switch of such switches. Every other GPU
has its own root port. The NVSwitches of a root bus share one PCIe switch. A PCIe switch uses the two bus numbers below
the lowest bus of its devices. A board has a management controller with VGA (ASPEED), unless it is a desktop's.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.hardware.pci_config import Bar, Function, Link, config, writable

SPEED_OF_GENERATION = {
    1: "2.5 GT/s PCIe",
    2: "5.0 GT/s PCIe",
    3: "8.0 GT/s PCIe",
    4: "16.0 GT/s PCIe",
    5: "32.0 GT/s PCIe",
}
GIB, MIB = 1 << 30, 1 << 20
_HOPPER = 0x23
"""The first byte of the device ids of GH100."""
SERVED = "/run/lab/hw/kernel/config"
"""The folder in a host with the configuration spaces that lab/simulators/kernelfs serves."""


@dataclass(frozen=True)
class PciGpu:
    """Properties of one GPU that the tree needs."""

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
    root_bus: int = -1
    slot: tuple[int, int] | None = None
    """Generation and lanes of the slot, if lower than the card's."""

    @property
    def root(self) -> int:
        """The bus number of its root complex."""
        return self.root_bus if self.root_bus >= 0 else 0x80 * self.numa_node


@dataclass(frozen=True)
class PciSwitch:
    """An NVSwitch."""

    address: str
    device_id: int
    numa_node: int
    root_bus: int


@dataclass
class Node:
    """A function in the tree, with the functions on its secondary bus in `below`."""

    function: Function
    numa_node: int
    below: list[Node] = field(default_factory=list)
    is_absent: bool = False


def tree(
    gpus: list[PciGpu], levels: dict[str, str], switches: Sequence[PciSwitch] = (), *, managed: bool = True
) -> list[tuple[str, list[Node]]]:
    """Returns (domain:bus, functions) of each root bus. `levels` is the rig's pcie_levels ("0-1": PIX).

    `managed`: the board has a management controller.
    """
    node_of = {0: 0} | {one.root_bus: one.numa_node for one in switches} | {gpu.root: gpu.numa_node for gpu in gpus}
    roots = {bus: [_host_bridge(bus, numa)] for bus, numa in sorted(node_of.items())}
    if managed:
        roots[0].append(_management(node_of[0]))
    board = _Board(sorted(_bus(address) for address in [*(g.address for g in gpus), *(s.address for s in switches)]))
    for cascade in _groups(range(len(gpus)), levels, ("PIX", "PXB")):
        first = gpus[cascade[0]]
        ends = {i: board.gpu(gpus[i], 24 + i) for i in cascade}
        if len(cascade) == 1:
            below = ends[cascade[0]]
        else:
            inner = _groups(cascade, levels, ("PIX",))
            below = board.switch([board.switch([ends[i] for i in group], first) for group in inner], first)
        board.plug(roots[first.root], below, first)
    for bus, functions in roots.items():
        here = [one for one in switches if one.root_bus == bus]
        if here:
            like = PciGpu(here[0].address, 0, (0, 0), False, here[0].numa_node, 0, 3, 16, 3, 16)
            ports = [board.nvswitch(one, 64 + n) for n, one in enumerate(here)]
            board.plug(functions, board.switch(ports, like), like)
    return [(f"0000:{bus:02x}", functions) for bus, functions in roots.items()]


def _groups(members: Sequence[int], levels: dict[str, str], near: tuple[str, ...]) -> list[list[int]]:
    """Groups GPU numbers: GPUs with a level in `near` between them are in one group. Order is kept."""
    of = {number: number for number in members}
    for pair, level in levels.items():
        if level in near and "-" in pair:
            a, b = (of.get(int(n), -1) for n in pair.split("-"))
            if a >= 0 and b >= 0:
                of = {i: min(a, b) if group in (a, b) else group for i, group in of.items()}
    return [[i for i in members if of[i] == group] for group in sorted(set(of.values()))]


def _bus(address: str) -> int:
    """Returns the bus number of an address."""
    return int(address[5:7], 16)


def _host_bridge(bus: int, numa: int) -> Node:
    return Node(Function(f"0000:{bus:02x}:00.0", 0x8086, 0x6F00, 0x060000, 0x8086, 0x0000, "host", revision=1), numa)


def _management(numa: int) -> Node:
    """Returns the VGA function of the management controller, which is directly on the first root bus."""
    bars = (Bar(0, 0x90000000, 16 * MIB, 0x40200), Bar(1, 0x91000000, 128 * 1024, 0x40200))
    return Node(
        Function("0000:00:1f.7", 0x1A03, 0x2000, 0x030000, 0x1A03, 0x2000, "conventional", bars, revision=0x30, irq=19),
        numa,
    )


class _Board:
    """Builds the functions.

    Memory addresses follow the order of the endpoints' buses, so a bridge's window is one range.
    """

    def __init__(self, buses: list[int]) -> None:
        self.buses = buses

    def _near(self, bus: int) -> int:
        """Returns the start of a bus's memory below 4 GiB; each bus has 32 MiB."""
        return 0x92000000 + bisect.bisect_left(self.buses, bus) * 32 * MIB

    def _far(self, bus: int) -> int:
        """Returns the start of a bus's prefetchable memory; each bus has 256 GiB."""
        return 0x380000000000 + bisect.bisect_left(self.buses, bus) * 256 * GIB

    def gpu(self, gpu: PciGpu, irq: int) -> Node:
        """Returns the node of a GPU: 16 MiB of registers, BAR1 of the rig's size, 32 MiB of BAR3. Hopper's registers
        are 64 bits wide."""
        bus = _bus(gpu.address)
        is_wide = gpu.device_id >> 8 == _HOPPER
        bars = (
            Bar(0, self._far(bus) + 224 * GIB, 16 * MIB, 0x14220C)
            if is_wide
            else Bar(0, self._near(bus), 16 * MIB, 0x40200),
            Bar(1 + is_wide, self._far(bus), gpu.bar1_bytes, 0x14220C),
            Bar(3 + is_wide, self._far(bus) + 192 * GIB, 32 * MIB, 0x14220C),
            *((Bar(5, 0x3000 + bus * 0x40, 128, 0x40101),) if gpu.is_display else ()),
        )
        kind, clazz = ("legacy", 0x030000) if gpu.is_display else ("endpoint", 0x030200)
        function = Function(
            gpu.address, 0x10DE, gpu.device_id, clazz, *gpu.subsystem, kind, bars, revision=0xA1, irq=irq,
            slot=gpu.slot,
            link=Link(gpu.generation, gpu.width, *((1, 0) if gpu.is_absent else (gpu.generation_now, gpu.width_now))),
        )  # fmt: skip
        return Node(function, gpu.numa_node, is_absent=gpu.is_absent)

    def nvswitch(self, switch: PciSwitch, irq: int) -> Node:
        """Returns the node of an NVSwitch: class of a bridge, header of an endpoint, 32 MiB of registers."""
        bars = (Bar(0, self._near(_bus(switch.address)), 32 * MIB, 0x40200),)
        function = Function(
            switch.address, 0x10DE, switch.device_id, 0x068000, 0x10DE, 0x0000, "endpoint", bars, revision=0xA1,
            irq=irq,
            link=Link(3, 4, 3, 4),
        )  # fmt: skip
        return Node(function, switch.numa_node)

    def plug(self, functions: list[Node], below: Node, like: PciGpu) -> None:
        """Attaches a node to a new root port of the root bus in `functions`."""
        number = 2 + sum(node.function.kind == "root" for node in functions)
        root = _bus(functions[0].function.address)
        functions.append(self._port(f"0000:{root:02x}:{number:02x}.0", "root", below, like))

    def switch(self, below: list[Node], like: PciGpu) -> Node:
        """Returns a PCIe switch with one port per node, on the two buses below the lowest bus of the nodes.

        A single node that is already a switch is returned unchanged.
        """
        if len(below) == 1 and below[0].function.is_bridge:
            return below[0]
        low = min(_bus(node.function.address) for node in below) - 2
        step = 8 if len(below) < 4 else 1
        ports = [
            self._port(f"0000:{low + 1:02x}:{step * (n + 1):02x}.0", "downstream", node, like)
            for n, node in enumerate(below)
        ]
        last = max(port.function.subordinate for port in ports)
        return Node(
            self._bridge(f"0000:{low:02x}:00.0", "upstream", None, (low + 1, last), like), like.numa_node, ports
        )

    def _port(self, address: str, kind: str, below: Node, like: PciGpu) -> Node:
        """Returns a port with one node on its secondary bus; port and node have the same link."""
        f = below.function
        link = None if f.is_bridge else f.link
        if link and f.slot:
            link = Link(*f.slot, link.generation_now, link.width_now)
        buses = (_bus(f.address), max(_bus(f.address), f.subordinate))
        return Node(self._bridge(address, kind, link, buses, like), like.numa_node, [below])

    def _bridge(self, address: str, kind: str, link: Link | None, buses: tuple[int, int], like: PciGpu) -> Function:
        """Returns a root port of the processor or a port of a PLX switch; its windows cover the buses below it."""
        vendor, device = (0x8086, 0x6F08) if kind == "root" else (0x10B5, 0x8747)
        first, last = buses
        io = 0x3000 + first * 0x40 & 0xF000
        windows = (
            (io, (0x3000 + last * 0x40 & 0xF000) + 0xFFF) if like.is_display else (0, 0),
            (self._near(first), self._near(last + 1) - 1),
            (self._far(first), self._far(last + 1) - 1) if like.bar1_bytes else (0, 0),
        )
        return Function(
            address, vendor, device, 0x060400, vendor, 0x0000, kind, revision=1 if kind == "root" else 0xCA, irq=16,
            link=link or Link(like.generation, like.width, like.generation, like.width),
            secondary=first, subordinate=last, windows=windows,
        )  # fmt: skip


def write(sys: Path, roots: list[tuple[str, list[Node]]], spaces: Path | None = None, domain: str = "") -> None:
    """Writes the tree to `sys`, with no device bound to a driver.

    `spaces`: the folder from which lab/simulators/kernelfs serves the configuration spaces (None: plain files).
    `domain`: the type of every IOMMU group, identity or DMA-FQ ("": no IOMMU).
    """
    bus = sys / "bus/pci"
    for name in ("devices", "drivers", "slots"):
        (bus / name).mkdir(parents=True)
    for name in ("rescan", "drivers_probe", "drivers_autoprobe"):
        (bus / name).write_text("1\n" if name == "drivers_autoprobe" else "")
    (sys / "module").mkdir()
    every = [node for _, functions in roots for node in functions]
    screen = _screen(sorted(every, key=lambda node: node.function.kind != "conventional"))
    for root, functions in roots:
        folder = sys / "devices" / f"pci{root}"
        folder.mkdir(parents=True)
        for node in functions:
            _node(bus, folder, node, spaces, domain, screen)


def _screen(nodes: Iterable[Node]) -> str:
    """Returns the address of the function on which the firmware shows its screen: the first VGA function; "" for
    none."""
    for node in nodes:
        if node.function.clazz == 0x030000 and not node.is_absent:
            return node.function.address
        if below := _screen(node.below):
            return below
    return ""


def _node(bus: Path, folder: Path, node: Node, spaces: Path | None, domain: str, screen: str) -> None:
    """Writes a function's folder, its link in bus/pci/devices, and all functions below it. Skips an absent function."""
    f = node.function
    if node.is_absent:
        return
    here = folder / f.address
    here.mkdir()
    values = {
        "vendor": f"0x{f.vendor:04x}", "device": f"0x{f.device:04x}", "class": f"0x{f.clazz:06x}",
        "revision": f"0x{f.revision:02x}",
        "subsystem_vendor": f"0x{f.subvendor:04x}", "subsystem_device": f"0x{f.subdevice:04x}", "irq": str(f.irq),
        "numa_node": str(node.numa_node), "enable": "1", "broken_parity_status": "0", "dma_mask_bits": "47",
        "modalias": f.modalias,
        "resource": f.resource, "local_cpulist": f"0-{(os.cpu_count() or 1) - 1}", "uevent": f.uevent,
    }  # fmt: skip
    if f.link:
        values |= link_now(f.link)
        values |= {"max_link_speed": SPEED_OF_GENERATION[f.link.generation], "max_link_width": str(f.link.width)}
    if f.clazz == 0x030000:
        values["boot_vga"] = "1" if f.address == screen else "0"
    for name, text in values.items():
        (here / name).write_text(text + "\n")
    for name in ("remove", "rescan", "reset"):
        (here / name).write_text("")
    if spaces is None:
        (here / "config").write_bytes(config(f))
    else:
        (spaces / f.address).write_bytes(config(f) + writable(f))
        (here / "config").symlink_to(f"{SERVED}/{f.address}")
    if domain:
        (here / "iommu_group").mkdir()
        (here / "iommu_group/type").write_text(domain + "\n")
    (here / "subsystem").symlink_to(os.path.relpath(bus, here))
    (bus / "devices" / f.address).symlink_to(os.path.relpath(here, bus / "devices"))
    for child in node.below:
        _node(bus, here, child, spaces, domain, screen)


def link_now(link: Link) -> dict[str, str]:
    """Returns the sysfs files with the current speed and width of a link."""
    return {
        "current_link_speed": SPEED_OF_GENERATION[link.generation_now],
        "current_link_width": str(link.width_now),
    }
