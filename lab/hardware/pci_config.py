"""The configuration space and the resource table of a PCI function, as bytes that lspci decodes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol


class Put(Protocol):
    """Writes values at an offset of the configuration space."""

    def __call__(self, at: int, layout: str, *values: int) -> None: ...


LINK_STATUS = 0x8A
ACS_CONTROL, ACS_CAPABILITY, ACS_ON = 0xF2A, 0x005F, 0x001D
"""Offset of the ACS control register, ACS capabilities of a bridge, and ACS default of a board, which redirects
peer-to-peer traffic and slows it."""

PORT_TYPE = {"endpoint": 0, "legacy": 1, "root": 4, "upstream": 5, "downstream": 6}


@dataclass(frozen=True)
class Bar:
    """A base address register; flags as in sysfs: 40200 32-bit memory, 14220c 64-bit prefetchable, 40101 I/O."""

    number: int
    start: int
    size: int
    flags: int


@dataclass(frozen=True)
class Link:
    """A PCIe link: maximum and current generation and lanes. They differ with, for example, a bad riser."""

    generation: int
    width: int
    generation_now: int
    width_now: int


@dataclass(frozen=True)
class Function:
    """One PCI function. `kind`: host, conventional, endpoint, legacy, root, upstream, downstream.

    `slot`: generation and lanes of the port above, if lower than the card's.
    """

    address: str
    vendor: int
    device: int
    clazz: int
    subvendor: int
    subdevice: int
    kind: str
    bars: tuple[Bar, ...] = ()
    revision: int = 0
    irq: int = 0
    link: Link | None = None
    secondary: int = 0
    subordinate: int = 0
    windows: tuple[tuple[int, int], ...] = ()
    slot: tuple[int, int] | None = None

    @property
    def is_bridge(self) -> bool:
        """Whether it has a bus below it."""
        return self.kind in ("root", "upstream", "downstream")

    @property
    def modalias(self) -> str:
        """The alias that udev passes to modprobe."""
        clazz = f"bc{self.clazz >> 16:02X}sc{self.clazz >> 8 & 255:02X}i{self.clazz & 255:02X}"
        return f"pci:v{self.vendor:08X}d{self.device:08X}sv{self.subvendor:08X}sd{self.subdevice:08X}{clazz}"

    @property
    def uevent(self) -> str:
        """The content of the uevent file without a driver."""
        ids = f"PCI_CLASS={self.clazz:X}\nPCI_ID={self.vendor:04X}:{self.device:04X}"
        subsystem = f"PCI_SUBSYS_ID={self.subvendor:04X}:{self.subdevice:04X}"
        return f"{ids}\n{subsystem}\nPCI_SLOT_NAME={self.address}\nMODALIAS={self.modalias}"

    @property
    def resource(self) -> str:
        """The content of sysfs `resource`: 7 rows for a device, 17 for a bridge, with its windows in rows 13 to 15."""
        rows = [(0, 0, 0)] * (17 if self.is_bridge else 7)
        for bar in self.bars:
            rows[bar.number] = (bar.start, bar.start + bar.size - 1, bar.flags)
        for number, ((start, end), flags) in enumerate(zip(self.windows, (0x101, 0x200, 0x102201), strict=False)):
            if end:
                rows[13 + number] = (start, end, flags)
        return "\n".join(f"0x{a:016x} 0x{b:016x} 0x{c:016x}" for a, b, c in rows)


def config(f: Function) -> bytes:
    """Returns the configuration space: 4096 bytes for PCIe, 256 otherwise."""
    express = f.kind in PORT_TYPE
    space = bytearray(4096 if express else 256)

    def put(at: int, layout: str, *values: int) -> None:
        struct.pack_into("<" + layout, space, at, *values)

    put(
        0,
        "HHHHBBBB",
        f.vendor,
        f.device,
        0x0407,
        0x0010 if express else 0,
        f.revision,
        f.clazz & 255,
        f.clazz >> 8 & 255,
        f.clazz >> 16,
    )
    put(0x0C, "BBB", 0x10, 0, 1 if f.is_bridge else 0)
    for bar in f.bars:
        kind = {0x40200: 0, 0x14220C: 0xC, 0x40101: 1}[bar.flags]
        put(0x10 + 4 * bar.number, "I", (bar.start & 0xFFFFFFFF) | kind)
        if kind == 0xC:
            put(0x14 + 4 * bar.number, "I", bar.start >> 32)
    if f.is_bridge:
        put(0x18, "BBB", int(f.address[5:7], 16), f.secondary, f.subordinate)
        (io, io_end), (memory, memory_end), (wide, wide_end) = f.windows
        put(0x1C, "BB", *((io >> 8 & 0xF0 | 1, io_end >> 8 & 0xF0 | 1) if io_end else (0xF1, 0x01)))
        put(
            0x20,
            "HHHH",
            memory >> 16 & 0xFFF0,
            memory_end >> 16 & 0xFFF0,
            (wide if wide_end else 0xFFF00000) >> 16 & 0xFFF0 | 1,
            wide_end >> 16 & 0xFFF0 | 1,
        )
        put(0x28, "II", wide >> 32, wide_end >> 32)
        put(0x3E, "H", 3)
    else:
        put(0x2C, "HH", f.subvendor, f.subdevice)
    put(0x34, "B", 0x60 if express else 0)
    put(0x3C, "BB", f.irq & 255, 1 if f.irq else 0)
    if express:
        _express(f, put)
    return bytes(space)


def writable(f: Function) -> bytes:
    """Returns the write mask of the configuration space, in the same length.

    Other bits are read-only, as in real hardware.
    """
    express = f.kind in PORT_TYPE
    mask = bytearray(4096 if express else 256)
    for at, bits in ((0x04, 0x0547), (0x0C, 0x00FF), (0x3C, 0x00FF)):
        struct.pack_into("<H", mask, at, bits)
    if express:
        for at, bits in ((0x64, 0x0003), (0x80, 0x7FFF), (0x88, 0x01FF), (0xA8, 0x001F)):
            struct.pack_into("<H", mask, at, bits)
        if f.is_bridge:
            struct.pack_into("<H", mask, 0x3E, 0x0043)
            struct.pack_into("<H", mask, ACS_CONTROL, ACS_CAPABILITY)
    return bytes(mask)


def link_status(f: Function) -> int:
    """Returns the LnkSta register: current link speed and width.

    A port without a card has 0 lanes and no active link.
    """
    link = f.link or Link(3, 16, 3, 16)
    active = 0x2000 if f.kind in ("root", "downstream") and link.width_now else 0
    return link.generation_now | link.width_now << 4 | 0x1000 | active


def _express(f: Function, put: Put) -> None:
    """Writes the capabilities: power management, MSI, PCI Express, and on bridges the subsystem id.

    Extended capabilities: AER, and on bridges ACS.
    """
    port = f.kind in ("root", "downstream")
    put(0x60, "BBHHH", 0x01, 0x68, 0x4803 if f.is_bridge else 0x0003, 0x0008, 0)
    put(0x68, "BBH", 0x05, 0x78, 0x0081)
    put(0x78, "BBH", 0x10, 0xB4 if f.is_bridge else 0, 2 | PORT_TYPE[f.kind] << 4 | (0x100 if port else 0))
    put(0x7C, "IHH", 0x00008DE1 if not f.is_bridge else 0x00008001, 0x2930, 0)
    link = f.link or Link(3, 16, 3, 16)
    put(0x84, "IH", link.generation | link.width << 4 | (0x3 << 20 if port else 0), 0x0040)
    put(LINK_STATUS, "H", link_status(f))
    if port:
        put(0x8C, "IHH", int(f.address[8:10], 16) << 19, 0, 0x40 if link.width_now else 0)
    put(0x9C, "IHH", 0x00070813 if not f.is_bridge else 0x00000010, 0x0009, 0)
    put(0xA4, "IHH", ((1 << link.generation) - 1) << 1, link.generation, 0x001E)
    if f.is_bridge:
        put(0xB4, "BBHHH", 0x0D, 0, 0, f.vendor, f.device)
        put(0x100, "III", 0x0003 | 1 << 16 | 0xFB4 << 20, 0x12345678, 0x9ABCDEF0)
        put(0xFB4, "I", 0x0001 | 1 << 16 | 0xF24 << 20)
        put(0xF24, "IHH", 0x000D | 1 << 16, ACS_CAPABILITY, ACS_ON)
        return
    put(0x100, "IIIIHHI", 0x0002 | 1 << 16 | 0x128 << 20, 0, 0, 0, 0, 0, 0)
    put(0x128, "II", 0x0004 | 1 << 16 | 0x420 << 20, 0)
    put(0x420, "IIII", 0x0001 | 2 << 16 | 0x600 << 20, 0, 0, 0x00062030)
    put(0x430, "III", 0, 0x2000, 0xA0)
    put(0x600, "II", 0x000B | 1 << 16 | 0x900 << 20, 0x0241_0001 & 0xFFFFFFFF)
    put(0x900, "III", 0x0019 | 1 << 16, 0, 0)
