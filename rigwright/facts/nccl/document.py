"""What the documents of the programs share that load GPUs and measure them. onhost/nccl_document.py makes it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from rigwright.facts.nccl.p2p_test import Mistake, Versions


class MeasurementDocument(Struct, frozen=True, kw_only=True):
    """The begin and the end of a document. `seconds`: how long the program ran, None where it was cut; `left_behind`:
    processes that it could not end."""

    schema: int
    outcome: Literal["ok", "failed", "could not run"]
    started: str
    seconds: float | None
    versions: Versions
    libraries: dict[str, str]
    errors: tuple[Mistake, ...]
    left_behind: tuple[int, ...]
