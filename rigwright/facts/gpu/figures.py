"""The few figures of a GPU that the history keeps of a stress, and the facts that are kept with a measurement."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from rigwright.facts import Fact, driver, kernel, system
from rigwright.facts.gpu import gpus

CONDITIONS: tuple[Fact[Any], ...] = (
    driver.loaded_version,
    system.running_kernel,
    kernel.command_line,
    system.firmware,
    gpus.gpus,
)
"""The facts that are kept with a measurement."""


class GpuFigures(Struct, frozen=True):
    """One GPU in one stress. None, "" or no entry: not measured or not known.

    `driver`, `cuda`: versions of the driver and the CUDA runtime. `asked_s`: the planned duration of all stages. While
    the GPU worked alone: `tflops` and `clocks_mhz` (mean) by kind of product; GB/s (10^9 bytes) of copies within its
    memory, to it and from it; `alone_max_c`; `slowed_by`, the most frequent reason for lower clocks from NVML. The
    highest of all stages: `core_max_c`, `memory_max_c` and `power_max_w`. `lowest_12v`: the machine's 12 V rail, volts.
    """

    uuid: str
    name: str
    power_limit_w: float | None
    driver: str
    cuda: str
    asked_s: float
    tflops: dict[str, float]
    clocks_mhz: dict[str, float]
    memory_gb_s: float | None = None
    to_device_gb_s: float | None = None
    from_device_gb_s: float | None = None
    alone_max_c: float | None = None
    core_max_c: float | None = None
    memory_max_c: float | None = None
    power_max_w: float | None = None
    slowed_by: str = ""
    lowest_12v: float | None = None

    @property
    def branch(self) -> str:
        """The branch of the driver: `535` of `535.161.08`."""
        return self.driver.partition(".")[0]


class Dated(Struct, frozen=True):
    """The figures of a GPU, the time of the measurement (ISO 8601, UTC) and its run."""

    at: str
    run: str
    figures: GpuFigures
