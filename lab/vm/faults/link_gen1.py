"""A GPU's link runs at the speed of generation 1, as with a bad riser or a slot that the firmware set so.

lspci -vv says "Speed 2.5GT/s (downgraded)" at the GPU, and its port has it too; current_link_speed in sysfs is "2.5
GT/s PCIe".
"""

from __future__ import annotations

from lab.vm.gpu_faults import as_made, set_property
from lab.vm.machine import Machine

ONE_GPU = True
AT_POWER_ON = True


def apply(machine: Machine, gpu: str) -> None:
    set_property(machine, gpu, "generation-now", 1)


def heal(machine: Machine, gpu: str) -> None:
    set_property(machine, gpu, "generation-now", as_made(machine, gpu, "generation-now"))
