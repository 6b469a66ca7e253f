"""Simulated hardware as files: rigs, GPU boards, the PCI tree, the firmware tables and the hardware state."""
