"""The results of the stress of all GPUs. onhost/stress.py describes every key."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct, to_builtins

from rigwright.core.command import Result
from rigwright.core.host_result import HostResult
from rigwright.facts import Fact
from rigwright.facts.gpu.figures import GpuFigures
from rigwright.facts.nccl.document import READ_DOCUMENT, MeasurementDocument, left_document, read_document
from rigwright.facts.nccl.p2p_test import Outcome

StageName = Literal["alone", "together", "in step", "soak"]
Kind = Literal["fp32", "tf32", "fp16", "fp64"]
Reason = Literal[
    "application clocks", "power limit", "hardware slowdown", "sync boost", "heat, by the driver", "heat, by the hardware", "power brake"
]  # fmt: skip


class Sensors(Struct, frozen=True):
    """What NVML said of a GPU in a span of time; None: not reported. `reasons`: why its clock was lowered, and in which
    share of the samples."""

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
    """Products of one kind on a GPU: TFLOPS, and how many they were. The sensors are those of their time."""

    kind: Kind
    tflops: float
    number: int


class Copies(Struct, frozen=True):
    """GB/s (10^9 bytes) of a GPU's copies; None: not measured. `memory`: what is read and what is written within its
    memory."""

    memory: float | None
    to_device: float | None
    from_device: float | None


class StageResult(Sensors, frozen=True):
    """One GPU in one stage. `digests`: the checksum of a product of each kind, the same on GPUs of one model."""

    gpu: int
    products: tuple[Products, ...]
    gb_s: Copies
    digests: dict[Kind, str]

    def rate(self, kind: str) -> Products | None:
        """Its products of a kind."""
        return next((one for one in self.products if one.kind == kind), None)


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
        return f"together, {len(self.gpus)} GPU{'s'[: len(self.gpus) > 1]}" if self.stage == "together" else self.stage


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
    """The supplies of the machine: the lowest 12 V (None: no reading) and when; the watts of each at the highest load
    of all, and its state in words. `source` None: nothing could be read."""

    source: Literal["ipmi", "hwmon"] | None
    lowest_12v: float | None
    lowest_at_s: float | None
    watts: dict[str, float]
    words: dict[str, str]


class Stress(HostResult, MeasurementDocument, frozen=True):
    """The document of one run of stress.py. `asked_s`: how long it was to take."""

    KEY = "stress"

    asked_s: float
    gpus: tuple[StressedGpu, ...]
    stages: tuple[Stage, ...]
    events: tuple[Event, ...]
    supplies: Supplies

    def results(self, stage: str) -> Iterator[tuple[Stage, StageResult]]:
        """The results of the GPUs in the stages of that name."""
        return ((one, result) for one in self.stages if one.stage == stage for result in one.results)


MOST = {"gpus": 64, "stages": 200, "events": 200, "errors": 20, "left_behind": 200, "libraries": 20}
"""The most items of each list of a document."""
LONGEST = 1000
"""The most characters of a text."""


def _measured(result: Result) -> Stress:
    text = left_document(result, "the stress has not run", "the stress left no document")
    found = read_document(text, Stress, "stress's")
    for name, most in MOST.items():
        if len(getattr(found, name)) > most:
            raise ValueError(f"{len(getattr(found, name))} {name.replace('_', ' ')}, not up to {most}")
    for value in _leaves(found):
        if isinstance(value, str) and len(value) > LONGEST:
            raise ValueError(f"a text of {len(value)} characters, not up to {LONGEST}")
        if isinstance(value, (int, float)) and not (math.isfinite(value) and 0 <= value < 1e12):
            raise ValueError(f"{value} is no such number")
    if [gpu.index for gpu in found.gpus] != list(range(len(found.gpus))):
        raise ValueError("GPUs that are not numbered from 0 on")
    named = {number for stage in found.stages for number in stage.gpus}
    named |= {one.gpu for stage in found.stages for one in stage.results}
    named |= {event.gpu for event in found.events if event.gpu is not None}
    if unknown := named - {gpu.index for gpu in found.gpus}:
        raise ValueError(f"GPU {min(unknown)}, which is not among its GPUs")
    return found


def _leaves(value: Any) -> Iterator[Any]:
    """The texts and numbers in a document, also those of keys."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, tuple):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            yield from _leaves(getattr(value, name))
    else:
        yield value


LEAST_SHARE = 0.02
"""From this share of the samples on a reason for lower clocks counts; a single sample may be the begin of the load
(assumed)."""


def figures(found: Stress) -> tuple[GpuFigures, ...]:
    """The figures of each GPU, which the history keeps; a GPU that computed nothing while it worked alone has none."""
    made = (_figures_of(found, gpu) for gpu in found.gpus if gpu.uuid)
    return tuple(one for one in made if one.tflops)


def _figures_of(found: Stress, gpu: StressedGpu) -> GpuFigures:
    every = [one for stage in found.stages for one in stage.results if one.gpu == gpu.index]
    alone = next((one for _, one in found.results("alone") if one.gpu == gpu.index), None)
    copies = alone.gb_s if alone else Copies(None, None, None)
    products = alone.products if alone else ()
    shares = [(share, reason) for one in products for reason, share in one.reasons.items() if share >= LEAST_SHARE]
    return GpuFigures(
        uuid=gpu.uuid,
        name=gpu.name,
        power_limit_w=gpu.power_limit_w,
        driver=found.versions.driver or "",
        cuda=found.versions.cuda_runtime or "",
        asked_s=found.asked_s,
        tflops={one.kind: round(one.tflops, 3) for one in products},
        clocks_mhz={one.kind: one.sm_mean_mhz for one in products if one.sm_mean_mhz},
        memory_gb_s=copies.memory,
        to_device_gb_s=copies.to_device,
        from_device_gb_s=copies.from_device,
        alone_max_c=max((one.core_max_c for one in products if one.core_max_c is not None), default=None),
        core_max_c=max((one.core_max_c for one in every if one.core_max_c is not None), default=None),
        memory_max_c=max((one.memory_max_c for one in every if one.memory_max_c is not None), default=None),
        power_max_w=max((one.power_max_w for one in every if one.power_max_w is not None), default=None),
        slowed_by=max(shares)[1] if shares else "",
    )


def _kept(found: Stress) -> list[dict[str, Any]]:
    return [to_builtins(one) for one in figures(found)]


measured = Fact("stress.measured", READ_DOCUMENT, _measured, kept=_kept)
"""The document of the stress; it exists on the host only right after the run. The history keeps a few figures of it
(GpuFigures)."""
