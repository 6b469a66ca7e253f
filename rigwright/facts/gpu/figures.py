"""What a stress measured of a GPU in a few figures, as the history keeps them."""

from __future__ import annotations

from msgspec import Struct


class GpuFigures(Struct, frozen=True):
    """One GPU in one stress. None, "" or no entry: not measured, or not known.

    `driver`, `cuda`: versions of the driver and of the CUDA runtime. `asked_s`: how long all stages together were to
    take. While the GPU worked alone: `tflops` and `clocks_mhz` (the mean) by kind of product; GB/s (10^9 bytes) of
    copies within its memory, to it and from it; `alone_max_c`, its highest temperature; `slowed_by`, the reason for
    lower clocks that NVML gave most often. Of all stages: `core_max_c`, `memory_max_c` and `power_max_w`, the highest.
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

    @property
    def branch(self) -> str:
        """The branch of the driver: `535` of `535.161.08`."""
        return self.driver.partition(".")[0]


class Dated(Struct, frozen=True):
    """The figures of a GPU, when they were measured (ISO 8601, UTC) and by which run."""

    at: str
    run: str
    figures: GpuFigures
