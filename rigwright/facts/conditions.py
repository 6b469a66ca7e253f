"""The facts under which GPUs are measured: figures of two measurements are compared with them beside."""

from __future__ import annotations

from typing import Any

from rigwright.facts import Fact, driver, kernel, system
from rigwright.facts.gpu import gpus as gpu

CONDITIONS: tuple[Fact[Any], ...] = (
    driver.loaded_version,
    system.running_kernel,
    kernel.command_line,
    system.firmware,
    gpu.gpus,
)
"""The facts that a measurement is kept with."""
