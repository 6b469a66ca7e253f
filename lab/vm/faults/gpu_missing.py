"""A GPU is pulled out of its slot while the machine runs, and is not there at later boots.

The kernel log says "Slot(N): Attention button pressed" and "Powering off"; lspci has one GPU fewer. Healed, it is
plugged in again; where the machine booted without it, its BAR1 may find no addresses until the next boot.
"""

from __future__ import annotations

from lab.vm.gpu_faults import plug, unplug
from lab.vm.machine import Machine

ONE_GPU = True
AT_POWER_ON = False


def apply(machine: Machine, gpu: str) -> None:
    unplug(machine, gpu)


def heal(machine: Machine, gpu: str) -> None:
    plug(machine, gpu)
