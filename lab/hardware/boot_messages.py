"""Kernel log of a boot before the first module is loaded: firmware, memory, IOMMU, PCI. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from lab.hardware.pci import Node
from lab.hardware.pci_config import Function

WARNING, NOTICE, INFO = 4, 5, 6
Record = tuple[int, str]
Roots = list[tuple[str, list[Node]]]

SIMULATED = (
    INFO,
    "lab: huge pages and CPU frequency policies are simulated: no memory is reserved, no frequency is set",
)
"""What no real kernel says."""


def start(kernel: str, command_line: str, dmi: str, memory_kib: int) -> Iterator[Record]:
    """Yields the first lines of the kernel log."""
    yield NOTICE, f"Linux version {kernel} (lab@rigwright) (gcc version 11.4.0) #1 SMP PREEMPT_DYNAMIC"
    yield INFO, f"Command line: {command_line}"
    if dmi:
        yield INFO, f"DMI: {dmi}"
    if memory_kib:
        yield INFO, f"Memory: {memory_kib - memory_kib // 40}K/{memory_kib}K available"
    yield NOTICE, f"Kernel command line: {command_line}"


def lockdown() -> Iterator[Record]:
    """Yields the kernel messages about Secure Boot and lockdown."""
    yield INFO, "secureboot: Secure boot enabled"
    yield NOTICE, "Kernel is locked down from EFI Secure Boot mode; see man kernel_lockdown.7"


def passes_through(command_line: str) -> bool:
    """Whether the kernel command line sets the IOMMU to passthrough. The last value of a parameter counts."""
    last = {key: value for key, _, value in (word.partition("=") for word in command_line.split())}
    return last.get("iommu") == "pt" or last.get("iommu.passthrough") == "1"


def iommu(command_line: str) -> Iterator[Record]:
    """Yields the kernel messages about the IOMMU."""
    last = {key: value for key, _, value in (word.partition("=") for word in command_line.split())}
    if "on" in last.get("intel_iommu", "").split(","):
        yield INFO, "DMAR: IOMMU enabled"
    passthrough = passes_through(command_line)
    kind = "Passthrough (set via kernel command line)" if passthrough else "Translated"
    yield INFO, f"iommu: Default domain type: {kind}"
    if not passthrough:
        yield INFO, "iommu: DMA domain TLB invalidation policy: lazy mode"


def pci(roots: Roots) -> Iterator[Record]:
    """Yields the messages about each root bus and its functions, in the order of the kernel's scan."""
    for root, functions in roots:
        yield INFO, f"PCI host bridge to bus {root}"
        for node in functions:
            yield from _function(node)


def _function(node: Node) -> Iterator[Record]:
    f = node.function
    if node.is_absent:
        return
    header = "01" if f.is_bridge else "00"
    yield INFO, f"pci {f.address}: [{f.vendor:04x}:{f.device:04x}] type {header} class 0x{f.clazz:06x}{_kind(f)}"
    for bar in f.bars:
        what = "io" if bar.flags == 0x40101 else "mem"
        more = " 64bit pref" if bar.flags == 0x14220C else ""
        yield INFO, f"pci {f.address}: BAR {bar.number} [{what} 0x{bar.start:x}-0x{bar.start + bar.size - 1:x}{more}]"
    if f.is_bridge:
        yield INFO, f"pci {f.address}: PCI bridge to [bus {f.secondary:02x}-{f.subordinate:02x}]"
    if f.link and not f.is_bridge and (f.link.generation_now, f.link.width_now) < (f.link.generation, f.link.width):
        yield INFO, f"pci {f.address}: {_bandwidth(f)}"
    for below in node.below:
        yield from _function(below)


def _kind(f: Function) -> str:
    kinds = {"root": "Root Port", "upstream": "Switch Upstream Port", "downstream": "Switch Downstream Port"}
    kinds |= {"endpoint": "Endpoint", "legacy": "Legacy Endpoint", "conventional": "conventional PCI endpoint"}
    return f" {('PCIe ' if f.link else '') + kinds[f.kind]}" if f.kind in kinds else ""


def _bandwidth(f: Function) -> str:
    """Returns the kernel's warning about a link that is slower or narrower than the function supports."""
    gt = {1: (2.5, 2000), 2: (5.0, 4000), 3: (8.0, 7876), 4: (16.0, 15753), 5: (32.0, 31506)}  # GT/s, Mb/s per lane
    assert f.link is not None
    link = f.link
    (now, now_mb), (most, most_mb) = gt[link.generation_now], gt[link.generation]
    return (
        f"{now_mb * link.width_now / 1000:.3f} Gb/s available PCIe bandwidth, limited by {now} GT/s PCIe "
        f"x{link.width_now} link at {f.address} "
        f"(capable of {most_mb * link.width / 1000:.3f} Gb/s with {most} GT/s PCIe x{link.width} link)"
    )
