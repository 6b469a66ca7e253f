"""The facts that `invoke facts` shows."""

from __future__ import annotations

from typing import Any

from rigwright.facts import Fact, dpkg, driver, gpu, grub, pci, system
from rigwright.facts import kernel as kernels

SHOWN: tuple[Fact[Any], ...] = (
    system.simulated,
    system.os_release,
    system.architecture,
    system.running_kernel,
    system.boot_id,
    system.free_mib,
    kernels.command_line,
    grub.grub,
    driver.secure_boot,
    dpkg.dpkg_audit,
    pci.gpus,
    driver.loaded_version,
    driver.library_version,
    gpu.gpus,
    gpu.processes,
)
