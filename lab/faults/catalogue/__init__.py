"""Faults: each module here is one fault. Its name is the file name with `-` for `_`. No registration is necessary.

The first paragraph of the module's docstring describes the effect, the second paragraph the symptoms. Both are copied
to docs/reference/lab-faults.md.

    NEEDS = ("gpu",)          parts that the host must have (lab/faults/inject.py, parts)
    ONE_GPU = True            whether the fault affects one GPU, which --gpu selects
    LASTS = 0                 number of reboots that the fault survives; None: all, until it is healed

    def apply(host, gpu)      applies the fault now or from the next boot on; a second call changes nothing
    def heal(host, gpu)       removes the fault; the docstring says if the host needs another boot

Faults change hardware through lab.faults.tamper, and the host's system through lab.host.inside (the host must be up).
"""
