"""The simulated GPU as a PCI device of QEMU: its source, which has a licence of its own (GPL-2.0-or-later), and its
build."""
