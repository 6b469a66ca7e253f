"""The power is cut at this moment, and stays off until the fault is healed: what the kernel had not written to the disk
is lost.

ssh gets no connection. Healed, the machine boots from its disk, whose file system replays its journal.
"""

from __future__ import annotations

from lab.vm import machine as machines
from lab.vm.hardware import power_on
from lab.vm.machine import Machine

ONE_GPU = False
AT_POWER_ON = False


def apply(machine: Machine, gpu: str) -> None:  # noqa: ARG001
    machines.cut(machine.name)


def heal(machine: Machine, gpu: str) -> None:  # noqa: ARG001
    power_on(machine, print)
