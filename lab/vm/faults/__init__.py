"""Faults of virtual machines: each module here is one fault. Its name is the file name with `-` for `_`. No
registration is necessary.

The first paragraph of the module's docstring describes the effect, the second paragraph the symptoms. Both are copied
to docs/reference/lab-faults.md.

    ONE_GPU = True            whether the fault affects one GPU, which --gpu selects
    AT_POWER_ON = True        whether it is applied again when the machine is switched on: faults of the hardware, until
    healed

    def apply(machine, gpu)   applies the fault from outside, by QEMU's machine protocol (QMP); a second call changes
    nothing
    def heal(machine, gpu)    removes the fault

`gpu` is the position of the GPU in the rig; "" for a fault of the whole machine.
"""
