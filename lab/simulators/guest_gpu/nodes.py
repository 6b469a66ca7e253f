"""Creates device nodes such as /dev/nvidia0 with the driver's names and numbers. No device is behind them; nothing
opens them.

On a machine with a real NVIDIA driver, these numbers would belong to it. The nodes then get numbers without a driver.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from lab.simulators.guest_gpu.state import devices, read

NVIDIA, UVM, UNUSED = 195, 508, (240, 241)
"""Major device numbers. UNUSED: majors that Linux reserves for local experiments."""


def make(newly_loaded: Iterable[str]) -> None:
    """Creates the nodes of these modules. Nodes of an unloaded module stay, as on a real host."""
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
