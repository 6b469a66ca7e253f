"""What programs that are not ours said on this host, over its GPUs: NVIDIA's nccl-tests, and an interpreter's torch.

Both are documents of onhost/nccl_programs.py, whose first lines say what every key is. They judge nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rigwright.errors import InputError
from rigwright.facts import Fact, Unavailable, Unreadable
from rigwright.facts.p2p import FOLDER, Kind, harmless
from rigwright.shell import Result, script
from rigwright.typed import Release, convert

T = TypeVar("T")


@dataclass(frozen=True)
class Way:
    """The way that NCCL's log names between two ranks."""

    transport: str
    kind: Kind


@dataclass(frozen=True)
class Run:
    """One program's run. `path` None: it is not on the host. `code`: its exit status, or minus the signal that ended it.

    `outcome` "flood": it wrote without end; "not run": `error` says why.
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
        """All it wrote, and what NCCL warned of."""
        return "\n".join((self.stdout, self.stderr, *self.warnings))


@dataclass(frozen=True)
class NcclTests:
    """NVIDIA's programs, with so many GPUs each, and where they were looked for."""

    schema: int
    gpus: int
    looked_in: tuple[str, ...]
    runs: tuple[Run, ...]
    left_behind: tuple[int, ...]


@dataclass(frozen=True)
class TorchGpu:
    """A GPU as torch sees it."""

    name: str
    capability: Release


@dataclass(frozen=True)
class Look:
    """What a torch is. `cuda` None: built without; `nccl` likewise; `missing`: there is no torch; `error`: of its import or of
    CUDA's start. `architectures`: sm_70, or compute_90 for what the driver translates."""

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
    """One process of the collective, and how far it came: start, connect, sum, message, time, done. `ok` None: not to its end."""

    rank: int
    stage: str
    ok: bool | None
    error: str | None
    busbw_gb_s: float | None
    mib: int


@dataclass(frozen=True)
class Torch:
    """An interpreter's torch: `started` is the run that looked at it, `collective` torchrun's (None: nothing to run it with)."""

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
    if result.code == 1 and not result.stdout:
        raise Unavailable("these programs have not run")
    if not result.stdout.strip():
        raise Unreadable("the run of these programs left no document")
    try:
        given: Any = json.loads(result.text)
        if not isinstance(given, dict):
            raise ValueError("no JSON object")
        found: T = convert(harmless(given), wanted, "the programs' document", "")
    except InputError as error:
        raise ValueError(str(error).replace("\n  wanted:", ", not")) from None
    except RecursionError:
        raise ValueError("nested without end") from None
    if given["schema"] != 1:
        raise ValueError(f"schema {given['schema']}, not 1")
    return found


_READ = script('cat "$1/document" 2>/dev/null', FOLDER)

nccl_tests = Fact("programs.nccl_tests", _READ, lambda result: _document(result, NcclTests))
"""What all_reduce_perf and sendrecv_perf said, while their document stands on the host: read once, right after them."""

torch = Fact("programs.torch", _READ, lambda result: _document(result, Torch))
"""What an interpreter's torch is and what came of its collective; read once, right after it."""
