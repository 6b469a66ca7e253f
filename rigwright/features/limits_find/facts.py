"""The results of a sweep over limits of the GPUs. host/limits_sweep.py describes every key."""

from __future__ import annotations

from msgspec import Struct

from rigwright.core.command import Result, script
from rigwright.facts import Fact
from rigwright.facts.nccl.document import (
    FOLDER,
    READ_DOCUMENT,
    MeasurementDocument,
    left_document,
    read_document,
    require_readings,
)
from rigwright.facts.nccl.load import MOST_ERRORS, LoadedGpu, Sensors

MOST_POINTS = 32


class SweptPoint(Struct, frozen=True):
    """One point by its number in the sweep: TFLOPS and sensors of each GPU; None: NVML reported nothing."""

    number: int
    tflops: tuple[float, ...]
    sensors: tuple[Sensors, ...] | None


class LostGpu(Struct, frozen=True):
    """A GPU, by its index, that no longer worked at a point; `where`: the title of the point."""

    gpu: int
    where: str
    what: str


class SweepDocument(MeasurementDocument, frozen=True):
    """The document of a run of limits_sweep.py. `not_put_back`: a text for each GPU with other limits than before."""

    gpus: tuple[LoadedGpu, ...]
    points: tuple[SweptPoint, ...]
    lost: tuple[LostGpu, ...]
    not_put_back: tuple[str, ...]


def _read_swept(result: Result) -> SweepDocument:
    text = left_document(result, "the sweep has not run", "the sweep left no document: it was ended before it was done")
    document = read_document(text, SweepDocument, "sweep's")
    if len(document.points) > MOST_POINTS:
        raise ValueError(f"{len(document.points)} points, not up to {MOST_POINTS}")
    if len(document.errors) > MOST_ERRORS + MOST_POINTS:
        raise ValueError(f"{len(document.errors)} errors, not up to {MOST_ERRORS + MOST_POINTS}")
    gpus = len(document.gpus)
    if len(document.lost) > gpus or any(not 0 <= lost.gpu < gpus for lost in document.lost):
        raise ValueError("a lost GPU that is not among its GPUs")
    for point in document.points:
        sensors = point.sensors or ()
        if len(point.tflops) != gpus or (point.sensors is not None and len(sensors) != gpus):
            raise ValueError(f"point {point.number} has not a value for each GPU")
        readings = [value for gpu in sensors for value in (gpu.clock_mhz, gpu.power_w, gpu.temperature_c)]
        require_readings((*point.tflops, *readings))
    return document


swept = Fact("limits_sweep.swept", READ_DOCUMENT, _read_swept)
"""The document of the sweep; the host has it only right after the run."""

left: Fact[bool] = Fact(
    "limits_sweep.left",
    script(f"[ ! -e {FOLDER}/limits-before.json ] || echo left", reads=True),
    lambda result: result.text == "left\n",
)
"""Whether the host keeps the limits of before a sweep: a sweep runs, or its limits could not be put back."""
