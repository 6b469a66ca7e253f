"""The simulated PCIe hardware of a virtual machine, and switching the machine on with it."""

from __future__ import annotations

from collections.abc import Callable

from lab.hardware.rigfile import describe
from lab.vm import inject, machine, topology
from lab.vm.device import build
from lab.vm.gpu_faults import missing
from lab.vm.machine import Machine

CPUS = 2


def options(made: Machine) -> list[str]:
    """Returns QEMU's options for memory, processors and the rig's hardware. Raises InputError for a rig that QEMU
    cannot have."""
    if made.rig is None:
        return ["-m", f"{made.memory_mib}M", "-smp", str(CPUS)]
    absent = missing(made, [gpu["position"] for gpu in describe(made.rig)["gpus"]])
    return topology.options(
        made.rig, made.name, memory_mib=made.memory_mib, cpus=CPUS, firmware=_firmware(made), absent=absent
    )


def fingerprint() -> str:
    """Returns what identifies the program of the simulated devices: a recorded state fits no other."""
    return build.fingerprint()


def power_on(made: Machine, say: Callable[[str], None], incoming: str = "") -> None:
    """Switches the machine on: it boots from its disk, or goes on from the state that the command `incoming` prints.

    Its hardware faults that were not healed are there from the beginning.
    """
    environment = build.environment(say) if made.rig else {}
    note = topology.reduced_bar1(made.rig, _firmware(made)) if made.rig else ""
    if note:
        say(note)
    machine.start(made, options(made), environment, incoming)
    inject.renew(made)


def _firmware(made: Machine) -> str:
    """Returns the kind of firmware by which device addresses are given."""
    return "bios" if made.firmware == "bios" else "uefi"
