"""The results of the stress of all GPUs. host/stress.py describes every key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from msgspec import Struct, to_builtins

from rigwright.core.command import Result
from rigwright.core.host_result import HostResult
from rigwright.core.numbers import count
from rigwright.facts import Fact
from rigwright.facts.gpu.figures import GpuFigures
from rigwright.facts.nccl.document import READ_DOCUMENT, MeasurementDocument, left_document, read_document
from rigwright.facts.nccl.p2p_test import Outcome

StageName = Literal["alone", "together", "in step", "soak"]
Kind = Literal["fp32", "tf32", "fp16", "fp64"]
Reason = Literal[
    "application clocks", "power limit", "hardware slowdown", "sync boost", "heat, by the driver",
    "heat, by the hardware", "power brake",
]  # fmt: skip


class Sensors(Struct, frozen=True):
    """What NVML reported of a GPU in a span of time; None: not reported. `reasons`: why its clock was lowered, and in
    which share of the samples."""

    samples: int
    power_mean_w: float | None
    power_max_w: float | None
    sm_mean_mhz: float | None
    sm_min_mhz: float | None
    memory_mean_mhz: float | None
    core_max_c: float | None
    memory_max_c: float | None
    reasons: dict[Reason, float]


class Products(Sensors, frozen=True):
    """Products of one kind on a GPU: their speed and number, and the sensors during them."""

    kind: Kind
    tflops: float
    number: int


class Copies(Struct, frozen=True):
    """GB/s (10^9 bytes) of a GPU's copies; None: not measured. `memory`: reads plus writes within its memory."""

    memory: float | None
    to_device: float | None
    from_device: float | None


class StageResult(Sensors, frozen=True):
    """One GPU in one stage. `digests`: the checksum of a product of each kind, the same on GPUs of one model."""

    gpu: int
    products: tuple[Products, ...]
    gb_s: Copies
    digests: dict[Kind, str]

    def products_of(self, kind: str) -> Products | None:
        """The products of a kind."""
        return next((products for products in self.products if products.kind == kind), None)


class Stage(Struct, frozen=True):
    """A stage with the GPUs that worked in it. `kind` None: several kinds of products. `began_s`: since the stress
    began."""

    stage: StageName
    gpus: tuple[int, ...]
    kind: Kind | None
    began_s: float
    seconds: float
    outcome: Outcome
    error: str | None
    all_reduce_gb_s: float | None
    results: tuple[StageResult, ...]

    @property
    def title(self) -> str:
        """`alone, GPU 2`, `together, 3 GPUs`, `in step` or `soak`."""
        if self.stage == "alone":
            return f"alone, GPU {', '.join(map(str, self.gpus))}"
        return f"together, {count(len(self.gpus), 'GPU')}" if self.stage == "together" else self.stage


class Event(Struct, frozen=True):
    """Something that went wrong, with the stage and the seconds since the stress began. `gpu` None: not known. `code`:
    of an Xid, or of CUDA."""

    at_s: float
    stage: str
    gpu: int | None
    what: Literal["lost", "hang", "error", "wrong", "xid"]
    code: int | None
    text: str


class Counters(Struct, frozen=True):
    """Counters of a GPU; None: not reported. Memory errors count since the driver was loaded."""

    pcie_replays: int | None
    ecc_corrected: int | None
    ecc_uncorrected: int | None


class StressedGpu(Struct, frozen=True):
    """A GPU by CUDA's number in the order of the bus, its limits, and its counters before and after."""

    index: int
    bus_id: str
    uuid: str
    name: str
    compute_capability: str
    power_limit_w: float | None
    sm_most_mhz: int | None
    slowdown_c: int | None
    memory_most_c: int | None
    before: Counters
    after: Counters


class Supplies(Struct, frozen=True):
    """The power supplies of the machine: the lowest reading of 12 V and its time; by supply the watts at the highest
    total load, and the state in words. None: nothing could be read."""

    source: Literal["ipmi", "hwmon"] | None
    lowest_12v: float | None
    lowest_at_s: float | None
    watts: dict[str, float]
    words: dict[str, str]


class Stress(HostResult, MeasurementDocument, frozen=True):
    """The document of one run of stress.py. `asked_s`: the planned duration."""

    KEY = "stress"

    asked_s: float
    gpus: tuple[StressedGpu, ...]
    stages: tuple[Stage, ...]
    events: tuple[Event, ...]
    supplies: Supplies

    def results(self, stage: str) -> Iterator[tuple[Stage, StageResult]]:
        """The results of the GPUs in the stages of that name."""
        return ((one, result) for one in self.stages if one.stage == stage for result in one.results)

    def results_of(self, gpu: StressedGpu) -> list[tuple[Stage, StageResult]]:
        """The results of a GPU in all stages."""
        return [(stage, result) for stage in self.stages for result in stage.results if result.gpu == gpu.index]

    @property
    def alone(self) -> dict[int, StageResult]:
        """By its number, the result of each GPU while it worked alone."""
        return {result.gpu: result for _, result in self.results("alone")}


MOST = {"gpus": 64, "stages": 200, "events": 200, "errors": 20, "left_behind": 200, "libraries": 20}
"""The most items of each list of a document."""
LONGEST = 1000
"""The most characters of a text."""


def _measured(result: Result) -> Stress:
    text = left_document(result, "the stress has not run", "the stress left no document")
    document = read_document(text, Stress, "stress's")
    for name, most in MOST.items():
        if len(getattr(document, name)) > most:
            raise ValueError(f"{len(getattr(document, name))} {name.replace('_', ' ')}, not up to {most}")
    for value in _leaves(to_builtins(document)):
        if isinstance(value, str) and len(value) > LONGEST:
            raise ValueError(f"a text of {len(value)} characters, not up to {LONGEST}")
        if isinstance(value, (int, float)) and not (math.isfinite(value) and 0 <= value < 1e12):
            raise ValueError(f"{value} is no such number")
    if [gpu.index for gpu in document.gpus] != list(range(len(document.gpus))):
        raise ValueError("GPUs that are not numbered from 0 on")
    named = {number for stage in document.stages for number in stage.gpus}
    named |= {result.gpu for stage in document.stages for result in stage.results}
    named |= {event.gpu for event in document.events if event.gpu is not None}
    if unknown := named - set(range(len(document.gpus))):
        raise ValueError(f"GPU {min(unknown)}, which is not among its GPUs")
    return document


def _leaves(value: Any) -> Iterator[Any]:
    """The keys, texts and numbers in a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


LEAST_SAMPLE_SHARE = 0.02
"""From this share of the samples on a reason for lower clocks counts; a single sample may be the beginning of the load
(assumed)."""


def figures(document: Stress) -> tuple[GpuFigures, ...]:
    """The figures of each GPU, which the history keeps; a GPU that computed nothing while it worked alone has none."""
    made = (_figures_of(document, gpu) for gpu in document.gpus if gpu.uuid)
    return tuple(figures for figures in made if figures.tflops)


def _figures_of(document: Stress, gpu: StressedGpu) -> GpuFigures:
    results = [result for _, result in document.results_of(gpu)]
    alone = document.alone.get(gpu.index)
    copies, products = (alone.gb_s, alone.products) if alone else (Copies(None, None, None), ())
    reasons = [(share, reason) for one in products for reason, share in one.reasons.items()]
    share, slowed_by = max(reasons, default=(0.0, ""))
    return GpuFigures(
        uuid=gpu.uuid,
        name=gpu.name,
        power_limit_w=gpu.power_limit_w,
        driver=document.versions.driver or "",
        cuda=document.versions.cuda_runtime or "",
        asked_s=document.asked_s,
        tflops={one.kind: round(one.tflops, 3) for one in products},
        clocks_mhz={one.kind: one.sm_mean_mhz for one in products if one.sm_mean_mhz},
        memory_gb_s=copies.memory,
        to_device_gb_s=copies.to_device,
        from_device_gb_s=copies.from_device,
        alone_max_c=highest(one.core_max_c for one in products),
        core_max_c=highest(result.core_max_c for result in results),
        memory_max_c=highest(result.memory_max_c for result in results),
        power_max_w=highest(result.power_max_w for result in results),
        slowed_by=slowed_by if share >= LEAST_SAMPLE_SHARE else "",
        lowest_12v=document.supplies.lowest_12v,
    )


def highest(values: Iterable[float | None]) -> float | None:
    """The highest value that was reported; None if there is none."""
    return max((value for value in values if value is not None), default=None)


measured = Fact(
    "stress.measured",
    READ_DOCUMENT,
    _measured,
    kept=lambda document: [to_builtins(one) for one in figures(document)],
)
"""The document of the stress; it exists on the host only right after the run. The history keeps its GpuFigures."""
