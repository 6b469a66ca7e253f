"""Simulators of the driver, CUDA and the kernel: C libraries, a FUSE daemon, and programs inside the host."""
