"""A GPU is on the bus, but its chip does not identify itself to a driver.

lspci shows it as always. nouveau says "unknown chipset (00000000)"; nvidia.ko does not bind to it. A driver that is
loaded already notices nothing.
"""

from __future__ import annotations

from lab.vm.gpu_faults import as_made, set_property
from lab.vm.machine import Machine

ONE_GPU = True
AT_POWER_ON = True


def apply(machine: Machine, gpu: str) -> None:
    set_property(machine, gpu, "boot0", 0)


def heal(machine: Machine, gpu: str) -> None:
    set_property(machine, gpu, "boot0", as_made(machine, gpu, "boot0"))
