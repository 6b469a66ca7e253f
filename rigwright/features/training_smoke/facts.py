"""The results of the training of a small model on the GPUs. host/train_smoke.py and ddp_smoke.py describe every
key."""

from __future__ import annotations

import math
import re
from typing import Literal

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from rigwright.core.command import Result
from rigwright.core.host_result import HostResult
from rigwright.core.schema import Release
from rigwright.facts import Fact
from rigwright.facts.nccl.document import READ_DOCUMENT, left_document, read_document
from rigwright.facts.nccl.nccl_tests import Run
from rigwright.features.training.torch_build import TorchBuild

MOST_GPUS, MOST_RUNS, LONGEST = 64, 8, 1000


class SmokeRank(Struct, frozen=True):
    """One process. `stage` is its last one. `samples_s`: of all ranks together; None: it did not come so far.
    `weights`: a digest."""

    rank: int
    world: int
    stage: Literal["start", "connect", "train", "judge", "done"]
    device: str | None
    capability: Release | None
    precision: Literal["bf16", "fp16", "fp32"]
    backend: Literal["nccl", "gloo"] | None
    torch: str | None
    steps: int
    batch: int
    seconds: float
    samples_s: float | None
    loss_first: float | None
    loss_last: float | None
    weights: str | None
    error: str | None


class SmokeRun(Struct, frozen=True):
    """The training on so many GPUs: how torchrun ended, and its ranks."""

    gpus: int
    run: Run
    ranks: tuple[SmokeRank, ...]

    @property
    def samples_s(self) -> float | None:
        """Samples a second of all GPUs together; None unless every rank came to its end."""
        speeds = [rank.samples_s for rank in self.ranks if rank.samples_s is not None and rank.stage == "done"]
        return min(speeds) if len(speeds) == self.gpus and self.run.outcome == "done" else None


class Smoke(HostResult, frozen=True):
    """The document of one run of train_smoke.py. `asked_s`: how long all trainings were to take together.

    `examined`: the run that looked at the interpreter's torch; `build` None: it told nothing. Without a torch that can
    train there are no runs.
    """

    KEY = "smoke"

    schema: int
    gpus: int
    python: str
    user: str
    asked_s: float
    build: TorchBuild | None
    examined: Run
    runs: tuple[SmokeRun, ...]
    left_behind: tuple[int, ...]


class SmokeFigures(Struct, frozen=True):
    """What the history keeps of a training: samples a second on so many GPUs, and what it depends on."""

    gpus: int
    samples_s: float
    precision: str
    torch: str
    devices: tuple[str, ...]


class DatedFigures(Struct, frozen=True):
    """Figures of an earlier training, with its time (ISO 8601) and run."""

    at: str
    run: str
    figures: SmokeFigures


def refuse_odd_ranks(run: SmokeRun, world: int) -> None:
    """Raises ValueError for ranks that are not numbered below `world`, each once, or that have impossible values."""
    numbers = [rank.rank for rank in run.ranks]
    if numbers != sorted(set(numbers)) or not set(numbers) <= set(range(world)):
        raise ValueError("ranks that are not numbered from 0 on")
    for rank in run.ranks:
        for value in asdict(rank).values():
            if isinstance(value, str) and len(value) > LONGEST:
                raise ValueError(f"a text of {len(value)} characters, not up to {LONGEST}")
        speed = rank.samples_s
        if speed is not None and not (math.isfinite(speed) and 0 < speed < 1e12):
            raise ValueError(f"{speed} is no speed")
        if rank.weights is not None and not re.fullmatch(r"[0-9a-f]{64}", rank.weights):
            raise ValueError("weights without a digest")


def _trained(result: Result) -> Smoke:
    text = left_document(result, "the training has not run", "the training left no document")
    smoke = read_document(text, Smoke, "training's")
    if not 1 <= smoke.gpus <= MOST_GPUS or len(smoke.runs) > MOST_RUNS or len(smoke.left_behind) > 200:
        raise ValueError("more GPUs or runs than a machine has")
    for run in smoke.runs:
        if not 1 <= run.gpus <= smoke.gpus or len(run.ranks) > run.gpus:
            raise ValueError(f"{len(run.ranks)} ranks on {run.gpus} of {smoke.gpus} GPUs")
        refuse_odd_ranks(run, run.gpus)
    return smoke


def figures(smoke: Smoke) -> list[SmokeFigures]:
    """The speed of each run that came to its end."""
    speeds = []
    for run in smoke.runs:
        if run.samples_s is not None:
            first = run.ranks[0]
            devices = tuple(sorted(rank.device or "" for rank in run.ranks))
            speeds.append(SmokeFigures(run.gpus, run.samples_s, first.precision, first.torch or "", devices))
    return speeds


trained = Fact("training_smoke.trained", READ_DOCUMENT, _trained, kept=lambda smoke: to_builtins(figures(smoke)))
"""The document of the training; it exists on the host only right after the run. The history keeps the speeds
(SmokeFigures)."""
