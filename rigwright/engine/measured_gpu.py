"""What the newest stress measured of a GPU, compared with its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from rigwright.core.host_result import HostResult

if TYPE_CHECKING:
    from rigwright.engine.report import HostReport


class MeasuredGpu(Struct, frozen=True):
    """A GPU with the figures of its newest stress on this machine. None, "" or no entry: not measured, or not known.

    `model`: its name. `at` (ISO 8601, UTC), `run`: when, and by which run. `power_limit_w`, `driver`: of that time.
    `tflops` by kind of product and `memory_gb_s`: measured while it worked alone. `shares`: of the figure that the
    catalogue has of the model, by kind of product. `clock_shares`: the same at the clock that it had. `memory_share`:
    of the bandwidth of the model. `slowed_by`: why NVML says that its clock was lower.
    """

    bus_id: str
    uuid: str
    position: str
    model: str
    at: str
    run: str
    power_limit_w: float | None
    driver: str
    tflops: dict[str, float]
    shares: dict[str, float] = field(default_factory=dict)
    clock_shares: dict[str, float] = field(default_factory=dict)
    memory_gb_s: float | None = None
    memory_share: float | None = None
    to_device_gb_s: float | None = None
    from_device_gb_s: float | None = None
    power_max_w: float | None = None
    core_max_c: float | None = None
    memory_max_c: float | None = None
    slowed_by: str = ""


class MeasuredGpus(HostResult, frozen=True):
    """The figures of the newest stress of each GPU that had one on this machine."""

    KEY = "measured"
    gpus: tuple[MeasuredGpu, ...] = ()

    def as_json(self, report: HostReport) -> tuple[MeasuredGpu, ...]:
        """The figures of each GPU."""
        del report
        return self.gpus
