"""The results of the short load on all GPUs, in rounds. onhost/nccl_load.py describes every key."""

from __future__ import annotations

from msgspec import Struct

from rigwright.core.command import Result
from rigwright.facts import Fact
from rigwright.facts.nccl.document import (
    READ_DOCUMENT,
    MeasurementDocument,
    left_document,
    read_document,
    require_readings,
)


class LoadedGpu(Struct, frozen=True):
    """A GPU by CUDA's number in the order of the bus."""

    index: int
    bus_id: str
    uuid: str
    name: str


class Sensors(Struct, frozen=True):
    """NVML's values of a GPU while it multiplies, medians of a round; None: not reported. `reasons`: the bits of all
    reasons for a lower clock."""

    clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    reasons: int | None


class Speed(Struct, frozen=True):
    """The speed of copies from one GPU to another, 10^9 bytes per second."""

    start: int
    end: int
    gb_s: float


class Round(Struct, frozen=True):
    """TFLOPS of each GPU, the copies of each pair, the bus bandwidth of the all-reduce. None: not measured."""

    process: int
    tflops: tuple[float, ...] | None
    copies: tuple[Speed, ...] | None
    all_reduce_gb_s: float | None
    sensors: tuple[Sensors, ...] | None


class Load(MeasurementDocument, frozen=True):
    """The document of one run of nccl_load.py."""

    gpus: tuple[LoadedGpu, ...]
    rounds: tuple[Round, ...]


MOST_ROUNDS = 100
MOST_ERRORS = 20
"""Errors of one document."""


def _measured(result: Result) -> Load:
    text = left_document(result, "the load has not run", "the load left no document")
    load = read_document(text, Load, "load's")
    if len(load.rounds) > MOST_ROUNDS:
        raise ValueError(f"{len(load.rounds)} rounds, not up to {MOST_ROUNDS}")
    if len(load.errors) > MOST_ERRORS:
        raise ValueError(f"{len(load.errors)} errors, not up to {MOST_ERRORS}")
    for each in load.rounds:
        values = [*(each.tflops or ()), *(pair.gb_s for pair in each.copies or ()), each.all_reduce_gb_s]
        for sensor in each.sensors or ():
            values += [sensor.clock_mhz, sensor.power_w, sensor.temperature_c]
        require_readings(values)
    return load


measured = Fact("nccl_load.measured", READ_DOCUMENT, _measured)
"""The document of the load, which is on the host only right after the run."""
