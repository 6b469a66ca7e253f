"""The hosts' kernel log and PCI configuration spaces: one FUSE daemon per lab, in C. serve.py is all that Python knows
of it."""
