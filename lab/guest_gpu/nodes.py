"""/dev/nvidia0 and its kin: names and numbers as the driver's; nothing answers behind them, and nothing opens them.

On a machine that has a real NVIDIA driver its numbers would lead to it: there the nodes get numbers that no driver has.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from lab.guest_gpu.state import devices, read

NVIDIA, UVM, UNUSED = 195, 508, (240, 241)
"""UNUSED: majors that Linux leaves to local experiments."""


def make(newly_loaded: Iterable[str]) -> None:
    """The nodes of these modules exist; those of a module that was unloaded stay, as in life."""
    newly_loaded = set(newly_loaded)
    taken = any(line.split()[-1].startswith("nvidia") for line in read("/proc/devices").splitlines() if line.strip())
    nvidia, uvm = UNUSED if taken else (NVIDIA, UVM)
    if "nvidia" in newly_loaded:
        mine = [device for device, driver in devices("nvidia") if driver == "nvidia"]
        for minor in range(len(mine)):
            _node(f"nvidia{minor}", nvidia, minor)
        _node("nvidiactl", nvidia, 255)
    if "nvidia_modeset" in newly_loaded:
        _node("nvidia-modeset", nvidia, 254)
    if "nvidia_uvm" in newly_loaded:
        _node("nvidia-uvm", uvm, 0)
        _node("nvidia-uvm-tools", uvm, 1)


def _node(name: str, major: int, minor: int) -> None:
    path = "/dev/" + name
    if not os.path.exists(path):
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        os.chmod(path, 0o666)
