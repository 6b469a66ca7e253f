"""A GPU falls off the bus: its configuration space and its memory read as ones, as with a bad riser or a weak power
supply.

lspci says "Unknown header type 7f" and setpci ffff; a driver that is started then finds no GPU there. Healed, it
answers again.
"""

from __future__ import annotations

from lab.vm.gpu_faults import set_property
from lab.vm.machine import Machine

ONE_GPU = True
AT_POWER_ON = True


def apply(machine: Machine, gpu: str) -> None:
    set_property(machine, gpu, "lost", True)


def heal(machine: Machine, gpu: str) -> None:
    set_property(machine, gpu, "lost", False)
