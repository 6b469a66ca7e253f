"""Writes the messages of kernel modules to the kernel log. Without a simulated kernel log, nothing is written."""

from __future__ import annotations

import contextlib
import os

from lab.simulators.guest_gpu.state import HW

ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6


def say(priority: int, text: str) -> None:
    """Writes one record, which can have several lines."""
    with contextlib.suppress(OSError):
        log = os.open(HW + "/kernel/klog", os.O_WRONLY)
        try:
            os.write(log, f"<{priority}>{text}".encode())
        finally:
            os.close(log)


def inserted(name: str, info: dict[str, str], addresses: list[str]) -> None:
    """Logs that a module was loaded and is bound to the devices at these addresses."""
    version, proprietary = info.get("version", ""), info.get("license") == "NVIDIA"
    if proprietary and name == "nvidia":
        say(WARNING, f"{name}: module license 'NVIDIA' taints kernel.")
        say(WARNING, "Disabling lock debugging due to kernel taint")
    if name == "nvidia":
        kind = "x86_64 Kernel Module" if proprietary else "Open Kernel Module for x86_64"
        say(INFO, "nvidia-nvlink: Nvlink Core is being initialized, major device number 510")
        for address in addresses:
            say(INFO, f"nvidia {address}: enabling device (0140 -> 0142)")
        say(WARNING, f"NVRM: loading NVIDIA UNIX {kind}  {version}  Thu Nov 19 12:00:00 UTC 2026")
    elif name == "nvidia_modeset":
        say(INFO, f"nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  {version}")
    elif name == "nvidia_drm":
        say(INFO, "[drm] [nvidia-drm] [GPU ID 0x00000100] Loading driver")
    elif name == "nvidia_uvm":
        say(INFO, "nvidia-uvm: Loaded the UVM driver, major device number 508.")
    for address in addresses if name == "nouveau" else ():
        say(INFO, f"nouveau {address}: enabling device (0140 -> 0142)")
        say(INFO, f"nouveau {address}: bios: version unknown (simulated)")


def no_gpu(taken: list[str]) -> None:
    """Logs that the nvidia driver found no free GPU; `taken` are the GPUs bound to another driver."""
    if taken:
        rows = [
            f"NVRM: The NVIDIA probe routine was not called for {len(taken)} device(s).",
            "NVRM: This can occur when a driver such as:",
            "NVRM: nouveau, rivafb, nvidiafb or rivatv",
            "NVRM: was loaded and obtained ownership of the NVIDIA device(s).",
            "NVRM: Try unloading the conflicting kernel module (and/or",
            "NVRM: reconfigure your kernel without the conflicting",
            "NVRM: driver(s)), then try loading the NVIDIA kernel module",
            "NVRM: again.",
        ]
        say(WARNING, "\n".join(rows))
        say(WARNING, "NVRM: No NVIDIA devices probed.")
    else:
        say(WARNING, "NVRM: No NVIDIA GPU found.")


def removed(name: str) -> None:
    """Logs that a module was unloaded."""
    if name == "nvidia":
        say(INFO, "nvidia-nvlink: Unregistered Nvlink Core, major device number 510")
    elif name == "nvidia_uvm":
        say(INFO, "nvidia-uvm: Unloaded the UVM driver.")
