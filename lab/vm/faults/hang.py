"""The machine hangs: its processors stop, and nothing answers until the fault is healed.

ssh connects and then gets no answer; the console is silent. Healed, it goes on where it was, and its clock is behind.
"""

from __future__ import annotations

from lab.vm.machine import Machine
from lab.vm.qmp import Qmp

ONE_GPU = False
AT_POWER_ON = False


def apply(machine: Machine, gpu: str) -> None:  # noqa: ARG001
    with Qmp(machine.qmp) as qmp:
        qmp.execute("stop")


def heal(machine: Machine, gpu: str) -> None:  # noqa: ARG001
    with Qmp(machine.qmp) as qmp:
        qmp.execute("cont")
