"""Faults of the GPUs of a virtual machine, made from outside by QMP: properties of the simulated device, and the hot
plug of PCIe."""

from __future__ import annotations

from lab.host.active_faults import standing
from lab.vm import topology
from lab.vm.machine import Machine
from lab.vm.qmp import Qmp
from rigwright.core.errors import HostError

UNPLUG_S = 60.0
"""The kernel releases a device about six seconds after the slot's button, on an idle machine."""
MISSING = "gpu-missing"
"""The fault of an empty slot, which is empty also when the machine is switched on again."""


def set_property(machine: Machine, position: str, name: str, value: bool | int) -> None:
    """Sets a property of the GPU in a position, if there is one in its slot. Raises HostError when QEMU refuses it."""
    with Qmp(machine.qmp) as qmp:
        if is_plugged(qmp, position):
            qmp.execute("qom-set", path=_path(position), property=name, value=value)


def as_made(machine: Machine, position: str, name: str) -> int:
    """Returns the value that a property of the GPU in a position has without a fault."""
    return int(_device(machine, position).properties[name])


def unplug(machine: Machine, position: str) -> None:
    """Unplugs the GPU in a position; the machine's kernel releases it first, as when the slot's button is pressed.

    Raises HostError when the kernel does not: none runs yet, or a driver holds the GPU.
    """
    with Qmp(machine.qmp) as qmp:
        if not is_plugged(qmp, position):
            return
        qmp.execute("device_del", id=topology.gpu_id(position))
        try:
            while qmp.wait_event("DEVICE_DELETED", UNPLUG_S)["data"].get("device") != topology.gpu_id(position):
                pass
        except HostError:
            raise HostError(
                machine.name,
                f"its kernel did not release the GPU in {position} within {UNPLUG_S:.0f} s",
                "a running kernel, and no driver that holds the GPU",
                f"ssh -F .lab/ssh_config {machine.name} sudo dmesg",
            ) from None


def plug(machine: Machine, position: str) -> None:
    """Plugs a GPU into an empty slot. The kernel finds it at once; if it started with the slot empty, its BAR1 may find
    no addresses until the next boot."""
    with Qmp(machine.qmp) as qmp:
        if not is_plugged(qmp, position):
            qmp.execute("device_add", **_device(machine, position).arguments)


def is_plugged(qmp: Qmp, position: str) -> bool:
    """Returns whether there is a GPU in a position's slot."""
    there = qmp.execute("qom-list", path="/machine/peripheral")
    return any(one["name"] == topology.gpu_id(position) for one in there)


def missing(machine: Machine, positions: list[str]) -> tuple[str, ...]:
    """Returns those of a machine's GPU positions, in bus order, that have the fault gpu-missing."""
    numbers = {one.gpu for one in standing(machine.name) if one.name == MISSING}
    return tuple(position for number, position in enumerate(positions) if number in numbers)


def _path(position: str) -> str:
    return f"/machine/peripheral/{topology.gpu_id(position)}"


def _device(machine: Machine, position: str) -> topology.Device:
    firmware = "bios" if machine.firmware == "bios" else "uefi"
    return topology.gpu_device(machine.rig or "", position, machine.name, firmware=firmware)
