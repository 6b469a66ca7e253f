"""The network cable is out: the machine runs, and no packet reaches it or leaves it.

Connections that are open get no answer. In the machine `ip link` says NO-CARRIER.
"""

from __future__ import annotations

from lab.vm.machine import Machine
from lab.vm.qmp import Qmp

ONE_GPU = False
AT_POWER_ON = True


def apply(machine: Machine, gpu: str) -> None:  # noqa: ARG001
    _set(machine, up=False)


def heal(machine: Machine, gpu: str) -> None:  # noqa: ARG001
    _set(machine, up=True)


def _set(machine: Machine, *, up: bool) -> None:
    with Qmp(machine.qmp) as qmp:
        qmp.execute("set_link", name="nic", up=up)
