"""Results of other programs on the host's GPUs: NVIDIA's nccl-tests, and the torch of a Python interpreter.

Both are documents of onhost/nccl_programs.py, whose docstring describes every key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeVar

from rigwright.core.command import Result
from rigwright.core.schema import Release
from rigwright.facts import Fact
from rigwright.facts.nccl import READ_DOCUMENT, Kind, left_document, read_document

T = TypeVar("T")


@dataclass(frozen=True)
class Way:
    """The transport between two ranks, from NCCL's log."""

    transport: str
    kind: Kind


@dataclass(frozen=True)
class Run:
    """One run of a program. `path` None: not on the host. `code`: the exit status, or the negative number of a signal.

    `outcome` "flood": too much output. `error` has details of "flood", "hang" and "not run".
    """

    program: str
    path: str | None
    outcome: Literal["done", "failed", "hang", "flood", "not run"]
    code: int | None
    seconds: float
    limit_s: float
    stdout: str
    stderr: str
    error: str | None
    transports: dict[str, Way]
    warnings: tuple[str, ...]

    def __post_init__(self) -> None:
        odd = next((ends for ends in self.transports if not re.fullmatch(r"\d+-\d+", ends)), None)
        if odd is not None:
            raise ValueError(f"transports of {odd!r}", "two ranks, such as 0-1")

    @property
    def said(self) -> str:
        """The output and NCCL's warnings."""
        return "\n".join((self.stdout, self.stderr, *self.warnings))


@dataclass(frozen=True)
class NcclTests:
    """The runs of NVIDIA's programs, each with `gpus` GPUs, and the folders that were searched."""

    schema: int
    gpus: int
    looked_in: tuple[str, ...]
    runs: tuple[Run, ...]
    left_behind: tuple[int, ...]


@dataclass(frozen=True)
class TorchGpu:
    """A GPU in torch's list."""

    name: str
    capability: Release


@dataclass(frozen=True)
class Look:
    """A torch installation. `cuda`, `nccl` None: built without. `missing`: torch is not installed. `error`: from the import or
    from the start of CUDA. `architectures`: sm_70; compute_90 for PTX, which the driver compiles."""

    python: str
    torch: str | None
    cuda: str | None
    hip: str | None
    nccl: str | None
    architectures: tuple[str, ...]
    gpus: tuple[TorchGpu, ...]
    error: str | None
    missing: bool


@dataclass(frozen=True)
class Rank:
    """One process of the collective. `stage` is its last one: start, connect, sum, message, time, done. `ok` None: not finished."""

    rank: int
    stage: str
    ok: bool | None
    error: str | None
    busbw_gb_s: float | None
    mib: int


@dataclass(frozen=True)
class Torch:
    """An interpreter's torch. `started`: the run that examined it; `collective`: the run of torchrun (None: not possible)."""

    schema: int
    gpus: int
    python: str
    user: str
    look: Look | None
    started: Run
    ranks: tuple[Rank, ...]
    collective: Run | None
    left_behind: tuple[int, ...]


def _document(result: Result, wanted: type[T]) -> T:
    text = left_document(result, "these programs have not run", "the run of these programs left no document")
    return read_document(text, wanted, "programs'")


nccl_tests = Fact("nccl_programs.nccl_tests", READ_DOCUMENT, lambda result: _document(result, NcclTests))
"""The document with the results of all_reduce_perf and sendrecv_perf; it exists on the host only right after the run."""

torch = Fact("nccl_programs.torch", READ_DOCUMENT, lambda result: _document(result, Torch))
"""The document about an interpreter's torch and its collective; it exists on the host only right after the run."""
