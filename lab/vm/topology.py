"""QEMU's options for the PCIe hardware of a rig: ports, switches, GPUs and NVSwitches at the rig's own bus numbers.

The tree is the one of lab/hardware/pci.py, which simulated hosts show as files, so GPUs have the same addresses in both
and match what the simulated driver library reports. A firmware numbers buses in the order of the ports and without
gaps; a gap is filled by bus numbers that a root port reserves, and below a switch by empty ports. NUMA nodes with a
root complex of their own are expander buses (pxb-pcie).

A rig with one NUMA node has its root ports on bus 00. With several, every root complex is an expander bus, because QEMU
tells the guest no node of bus 00; the root complex "00" then has the number below its first bus.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lab.hardware import pci
from lab.hardware.board import board_conf, model
from lab.hardware.pci_config import Function, Link
from lab.hardware.rigfile import describe
from lab.power.rig import plugged_in, switches
from rigwright.catalogue.cards import chip_of
from rigwright.core.errors import InputError

FIRST_PORT, FIRST_EXPANDER = 0x08, 0x17
"""The first device numbers on bus 00 of root ports and of expander buses. Disks and network cards use lower ones."""
NODE_MIB = 128
"""The least memory of a NUMA node."""
ROOM_GIB = {"bios": 640, "uefi": 256}
"""The 64-bit memory for GPUs by firmware. An emulated processor has 40 address bits, of which the kernel leaves out the
last 12 GiB; OVMF's window is a power of two at a multiple of itself, half of which alignment may take."""
UEFI_WINDOW_GIB = 32
"""The 64-bit memory for devices that OVMF has without an option."""

CHIP_NUMBERS = {
    "GK104": 0x0E4, "GK106": 0x0E6, "GK107": 0x0E7, "GK110": 0x0F0, "GK208": 0x108, "GK210": 0x0F2,
    "GM107": 0x117, "GM108": 0x118, "GM200": 0x120, "GM204": 0x124, "GM206": 0x126,
    "GP100": 0x130, "GP102": 0x132, "GP104": 0x134, "GP106": 0x136, "GP107": 0x137, "GP108": 0x138,
    "GV100": 0x140,
    "TU102": 0x162, "TU104": 0x164, "TU106": 0x166, "TU116": 0x168, "TU117": 0x167,
    "GA100": 0x170, "GA102": 0x172, "GA103": 0x173, "GA104": 0x174, "GA106": 0x176, "GA107": 0x177,
    "GH100": 0x180,
    "AD102": 0x192, "AD103": 0x193, "AD104": 0x194, "AD106": 0x196, "AD107": 0x197,
    "GB100": 0x1A0, "GB202": 0x1B2, "GB203": 0x1B3, "GB205": 0x1B5, "GB206": 0x1B6, "GB207": 0x1B7,
}  # fmt: skip
"""Bits 20 to 28 of NV_PMC_BOOT_0 by chip. Source: Linux, nouveau's nvkm/engine/device/base.c; GK210: BOOT_0 of a
K80."""


@dataclass
class Device:
    """A device of QEMU; `properties` in the form of `-device`."""

    driver: str
    id: str
    properties: dict[str, str | int] = field(default_factory=dict)

    @property
    def option(self) -> str:
        """The value of `-device`."""
        return ",".join([self.driver, f"id={self.id}", *(f"{key}={value}" for key, value in self.properties.items())])

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of QMP's device_add, which knows no hexadecimal numbers."""
        values = {
            key: int(value, 16) if isinstance(value, str) and value.startswith("0x") else value
            for key, value in self.properties.items()
        }
        return {"driver": self.driver, "id": self.id, **values}


def options(
    rig: str,
    host: str = "",
    *,
    memory_mib: int = 2560,
    cpus: int = 2,
    firmware: str = "bios",
    absent: tuple[str, ...] = (),
) -> list[str]:
    """Returns the options of qemu-system-x86_64 for a rig's PCIe hardware, and -m and -smp with the rig's NUMA nodes.

    `host` (default: the rig's name) chooses the serial numbers. `firmware`: bios or uefi. `absent`: positions whose
    slot is empty. Needs the machine type q35; disks and network cards of the caller may use the device numbers 01 to 07
    of bus 00, and come after these options if they have no `addr`. Raises InputError, which names the rig, if QEMU
    cannot have its hardware.
    """
    described = describe(rig, host)
    positions = [gpu["position"] for gpu in described["gpus"]]
    unknown = sorted(set(absent) - set(positions))
    if unknown:
        raise InputError(rig, f"no position {unknown[0]!r}", ", ".join(positions))
    empty = {gpu_id(position) for position in absent}
    all_devices = devices(rig, host, firmware=firmware)
    found = _nodes(rig, max(described["nodes"]) + 1 if len(described["nodes"]) > 1 else 1, memory_mib, cpus)
    found += ["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]
    if firmware == "uefi" and _bar1_gib(all_devices) > UEFI_WINDOW_GIB:
        found += ["-fw_cfg", f"name=opt/ovmf/X-PciMmio64Mb,string={2 * ROOM_GIB['uefi'] << 10}"]
    for device in all_devices:
        if device.id not in empty:
            found += ["-device", device.option]
    return found


def devices(rig: str, host: str = "", *, firmware: str = "bios") -> list[Device]:
    """Returns the devices of a rig, a bus before the devices on it. Raises InputError as options.

    A BAR1 that would not fit in the processor's addresses is halved until all fit; reduced_bar1 says so.
    """
    described = describe(rig, host)
    board = board_conf(described, {gpu["model"]: model(gpu["model"]) for gpu in described["gpus"]})
    roots = pci.tree(list(plugged_in(board)), described["pcie_levels"], switches(described), managed=False)
    found = _Plan(rig, described).of(roots)
    gpus = [one for one in found if "bar1-size" in one.properties]
    while _bar1_gib(gpus) > ROOM_GIB[firmware]:
        largest = max(int(one.properties["bar1-size"]) for one in gpus)
        for one in gpus:
            one.properties["bar1-size"] = min(int(one.properties["bar1-size"]), largest // 2)
    return found


def gpu_device(rig: str, position: str, host: str = "", *, firmware: str = "bios") -> Device:
    """Returns the device of the GPU in a position, for QMP's device_add. Raises InputError for an unknown position."""
    found = {one.id: one for one in devices(rig, host, firmware=firmware)}
    if gpu_id(position) not in found:
        raise InputError(rig, f"no position {position!r}", ", ".join(gpu["position"] for gpu in describe(rig)["gpus"]))
    return found[gpu_id(position)]


def reduced_bar1(rig: str, firmware: str = "bios") -> str:
    """Returns a sentence if GPUs have a smaller BAR1 than the rig's, which does not fit in the processor's addresses;
    else ""."""
    described = describe(rig)
    board = board_conf(described, {gpu["model"]: model(gpu["model"]) for gpu in described["gpus"]})
    real = max((gpu.bar1_bytes for gpu in plugged_in(board)), default=0)
    here = max((int(one.properties.get("bar1-size", 0)) for one in devices(rig, firmware=firmware)), default=0)
    if here == real:
        return ""
    return (
        f"{rig}: BAR1 of a GPU has {here >> 30} GiB instead of {real >> 30}: the virtual processor has 40 address bits"
    )


def _bar1_gib(found: list[Device]) -> int:
    """Returns the 64-bit memory that the GPUs take, GiB: twice BAR1, because BAR3 follows it in a window aligned to
    BAR1."""
    return sum(2 * int(one.properties.get("bar1-size", 0)) for one in found) >> 30


def gpu_id(position: str) -> str:
    """Returns QEMU's id of the GPU in a position: its QOM path is /machine/peripheral/ID."""
    return f"gpu-{position}"


def boot0(rig: str, device_id: int) -> int:
    """Returns NV_PMC_BOOT_0 of the chip with a PCI device id, revision A1. Raises InputError for a chip without a known
    one."""
    found = chip_of(f"{device_id:04x}")
    if found is None or found[0] not in CHIP_NUMBERS:
        name = found[0] if found else "unknown"
        raise InputError(rig, f"the chip of 10de:{device_id:04x} ({name}) has no known BOOT_0", ", ".join(CHIP_NUMBERS))
    return CHIP_NUMBERS[found[0]] << 20 | 0xA1


class _Plan:
    """Turns the tree into devices."""

    def __init__(self, rig: str, described: dict[str, Any]) -> None:
        self.rig = rig
        self.gpus = {gpu["bus_id"]: gpu for gpu in described["gpus"]}
        self.is_numa = len(described["nodes"]) > 1
        self.devices: list[Device] = []
        self.expanders = 0
        self.slots = 0
        self.last_bus = 0

    def of(self, roots: list[tuple[str, list[pci.Node]]]) -> list[Device]:
        """Returns the devices of the root buses, by bus number."""
        for name, functions in sorted(roots, key=lambda one: one[0]):
            ports = sorted(
                (one for one in functions if one.function.kind == "root"), key=lambda one: one.function.secondary
            )
            if ports:
                self._root(int(name[5:], 16), ports)
        return self.devices

    def _root(self, bus: int, ports: list[pci.Node]) -> None:
        """Adds a root bus and everything below it. The next bus number of the firmware is always last_bus + 1."""
        first = ports[0].function.secondary
        if bus or self.is_numa:
            bus = bus or first - 1
            if bus <= self.last_bus:
                raise self._error(f"the root bus {bus:02x} is not above bus {self.last_bus:02x}")
            parent, device = f"root-{bus:02x}", 0x02
            place: dict[str, str | int] = {"bus": "pcie.0", "addr": f"{FIRST_EXPANDER + self.expanders:02x}.0"}
            node = {"numa_node": ports[0].numa_node} if self.is_numa else {}
            self.devices.append(Device("pxb-pcie", parent, {**place, "bus_nr": bus, **node}))
            self.expanders += 1
            self.last_bus = bus
        else:
            parent, device = "pcie.0", FIRST_PORT
        before: Device | None = None
        start = 0
        for port in ports:
            secondary = port.function.secondary
            if secondary > self.last_bus + 1 and before is None:
                start, device = self.last_bus + 1, device + 1
                before = self._port("rigwright-root-port", f"port-{start:02x}", parent, device - 1, 3, 16)
            if before is not None and secondary > self.last_bus + 1:
                before.properties["bus-reserve"] = secondary - 1 - start
                self.last_bus = secondary - 1
            start = secondary
            before = self._bridge(port, parent, device)
            device += 1
        if device > (FIRST_EXPANDER if parent == "pcie.0" else 0x20):
            raise self._error(f"{len(ports)} root ports on one bus")

    def _bridge(self, node: pci.Node, parent: str, device: int) -> Device:
        """Adds a port, or the upstream port of a switch, and everything below it, and returns it."""
        f = node.function
        if f.secondary != self.last_bus + 1:
            raise self._error(f"bus {f.secondary:02x} follows bus {self.last_bus:02x}")
        link = (f.link.generation, f.link.width) if f.link else (3, 16)
        if f.kind == "upstream":
            bridge = Device("rigwright-switch-upstream", f"switch-{f.secondary:02x}", {"bus": parent, "addr": "00.0"})
            bridge.properties |= {"generation": link[0], "width": link[1]}
            self.devices.append(bridge)
        else:
            kind = "rigwright-root-port" if f.kind == "root" else "rigwright-switch-downstream"
            bridge = self._port(kind, f"port-{f.secondary:02x}", parent, device, *link)
            if f.kind == "root" and not _has_io(node):
                bridge.properties["io-reserve"] = 0
        self.last_bus = f.secondary
        free = [number for number in range(32) if number not in {_device(one.function) for one in node.below}]
        for below in node.below:
            if not below.function.is_bridge:
                self._endpoint(below.function, bridge.id)
                continue
            while f.kind == "upstream" and below.function.secondary > self.last_bus + 1:
                low = [number for number in free if number < _device(below.function)]
                if not low:
                    raise self._error(f"bus {below.function.secondary:02x} is too far from bus {self.last_bus:02x}")
                self.last_bus += 1
                free.remove(low[-1])
                self._port("rigwright-switch-downstream", f"port-{self.last_bus:02x}", bridge.id, low[-1], 3, 16)
            self._bridge(below, bridge.id, _device(below.function))
        return bridge

    def _port(self, kind: str, name: str, parent: str, device: int, generation: int, width: int) -> Device:
        """Adds a root port or downstream port, with a slot, and returns it."""
        self.slots += 1
        properties: dict[str, str | int] = {"bus": parent, "addr": f"{device:02x}.0", "chassis": 1, "slot": self.slots}
        port = Device(kind, name, {**properties, "generation": generation, "width": width})
        self.devices.append(port)
        return port

    def _endpoint(self, f: Function, parent: str) -> None:
        """Adds a GPU or an NVSwitch."""
        gpu = self.gpus.get(f.address)
        sizes = {bar.number: bar.size for bar in f.bars}
        link = f.link or Link(3, 16, 3, 16)
        generation_now, width_now = link.generation_now, link.width_now
        if f.slot:
            generation_now, width_now = min(generation_now, f.slot[0]), min(width_now, f.slot[1])
        self.devices.append(
            Device(
                "rigwright-gpu",
                gpu_id(gpu["position"]) if gpu else f"nvswitch-{f.address[5:7]}",
                {
                    "bus": parent, "addr": "00.0", "device-id": f"0x{f.device:04x}",
                    "sub-vendor-id": f"0x{f.subvendor:04x}", "sub-device-id": f"0x{f.subdevice:04x}",
                    "class": f"0x{f.clazz:06x}", "revision": f"0x{f.revision:02x}",
                    "boot0": boot0(self.rig, f.device) if gpu else 0,
                    "registers-size": sizes[0], "bar1-size": sizes.get(1, 0), "bar3-size": sizes.get(3, 0),
                    "io-size": sizes.get(5, 0), "generation": link.generation, "width": link.width,
                    "generation-now": generation_now, "width-now": width_now,
                    "serial": int(gpu["serial"]) if gpu else 0,
                },
            )
        )  # fmt: skip

    def _error(self, found: str) -> InputError:
        return InputError(
            f"lab/hardware/rigs/{self.rig}.yml",
            f"a virtual machine cannot have these bus numbers: {found}",
            "bus numbers in the order of the ports, each switch with the two below its lowest device",
        )


def _device(f: Function) -> int:
    """Returns the device number of an address."""
    return int(f.address[8:10], 16)


def _has_io(node: pci.Node) -> bool:
    """Returns whether a device below has an I/O address register."""
    return any(_has_io(one) or any(bar.number == 5 for bar in one.function.bars) for one in node.below)


def _nodes(rig: str, nodes: int, memory_mib: int, cpus: int) -> list[str]:
    """Returns -m and -smp, and the options for NUMA nodes, each with memory: the kernel leaves out a node without.

    Processors are divided by sockets, one for a node, among as many nodes as divide them.
    """
    memory = ["-m", f"{memory_mib}M"]
    if nodes == 1:
        return [*memory, "-smp", f"{cpus}"]
    each = memory_mib // nodes // 2 * 2
    if each < NODE_MIB:
        raise InputError(rig, f"{memory_mib} MiB of memory for {nodes} NUMA nodes", f"{NODE_MIB} MiB for each")
    sockets = max(number for number in range(1, nodes + 1) if cpus % number == 0)
    of_socket = cpus // sockets
    found = [*memory, "-smp", f"{cpus},sockets={sockets}"]
    for node in range(nodes):
        size = each if node else memory_mib - each * (nodes - 1)
        own = f",cpus={node * of_socket}-{(node + 1) * of_socket - 1}" if node < sockets else ""
        found += ["-object", f"memory-backend-ram,id=memory-{node},size={size}M"]
        found += ["-numa", f"node,nodeid={node},memdev=memory-{node}{own}"]
    return found
