"""A GPU's link has trained to one lane, as on a mining riser.

lspci -vv says "Width x1 (downgraded)" at the GPU, and its port has it too; current_link_width in sysfs is 1.
"""

from __future__ import annotations

from lab.vm.gpu_faults import as_made, set_property
from lab.vm.machine import Machine

ONE_GPU = True
AT_POWER_ON = True


def apply(machine: Machine, gpu: str) -> None:
    set_property(machine, gpu, "width-now", 1)


def heal(machine: Machine, gpu: str) -> None:
    set_property(machine, gpu, "width-now", as_made(machine, gpu, "width-now"))
