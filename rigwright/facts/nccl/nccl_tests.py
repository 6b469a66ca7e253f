"""Results of NVIDIA's nccl-tests on the host's GPUs. onhost/nccl_programs.py describes every key."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from rigwright.core.command import Result
from rigwright.facts import Fact
from rigwright.facts.nccl.document import READ_DOCUMENT, left_document, read_document
from rigwright.facts.nccl.p2p_test import Kind


class Way(Struct, frozen=True):
    """The transport between two ranks, from NCCL's log."""

    transport: str
    kind: Kind


class Run(Struct, frozen=True):
    """One run of a program. `path` None: not on the host. `code`: the exit status, or the negative number of a signal.
    `outcome` "flood": too much output. `error`: details of "flood", "hang" and "not run"."""

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
        for ends in self.transports:
            if not re.fullmatch(r"\d+-\d+", ends):
                raise ValueError(f"transports of {ends!r}", "two ranks, such as 0-1")

    @property
    def said(self) -> str:
        """The output and NCCL's warnings."""
        return "\n".join((self.stdout, self.stderr, *self.warnings))


class NcclTests(Struct, frozen=True):
    """The runs of NVIDIA's programs, each with `gpus` GPUs, and the folders that were searched."""

    schema: int
    gpus: int
    looked_in: tuple[str, ...]
    runs: tuple[Run, ...]
    left_behind: tuple[int, ...]


def _document(result: Result) -> NcclTests:
    text = left_document(result, "these programs have not run", "the run of these programs left no document")
    return read_document(text, NcclTests, "programs'")


nccl_tests = Fact("nccl_programs.nccl_tests", READ_DOCUMENT, _document)
"""The results of all_reduce_perf and sendrecv_perf, which are on the host only right after the run."""
