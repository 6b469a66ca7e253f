"""Faults: one module here is one fault, named as its file with `-` for `_`; nothing else has to know of it.

The first paragraph of its docstring says what happens, the second what is then seen; both go into docs/lab-faults.md.

    NEEDS = ("gpu",)          parts that the host must have (lab/fault.py, parts)
    ONE_GPU = True            whether it is of one GPU, which --gpu chooses
    LASTS = 0                 how many boots it outlives; None: all, until it is healed

    def apply(host, gpu)      the fault is there, or will be from the next boot on; twice is as once
    def heal(host, gpu)       as if it had never been; whether that takes a boot, the docstring says

Hardware is changed through lab.tamper, the host's own system through lab.inside, which needs it up.
"""
