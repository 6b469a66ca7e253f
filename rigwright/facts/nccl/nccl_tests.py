"""Results of NVIDIA's nccl-tests on the host's GPUs: the document that onhost/nccl_programs.py describes, and the table
that each program prints.

Rows of a table are read from the right by the header, because `redop` and `root` are missing in some versions and blank
in others.

    size count type redop time algbw busbw error time algbw busbw error           until 2021; error: largest deviation
    size count type redop root time algbw busbw #wrong time algbw busbw #wrong    since; #wrong: number of wrong values
    ... time algbw busbw #wrong i_min i_max i_p99 i_cv% ...                       with a report of every iteration
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from rigwright.core import host_text
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

_TIMES = ("time", "cputime")
_GROUP = (*_TIMES, "algbw", "busbw", "error", "#wrong", "i_min", "i_max", "i_p99", "i_cv%")
_LEADING = ("size", "count", "type", "redop", "root")


class Row(Struct, frozen=True):
    """One message size. `busbw_gb_s`: the better of out-of-place and in-place. `wrong`: of both; None: not compared."""

    size_bytes: int
    busbw_gb_s: float
    wrong: int | None


class Table(Struct, frozen=True):
    """The rows of a run. `out_of_bounds`: the number of wrong values in its last line, None without that line."""

    rows: tuple[Row, ...]
    out_of_bounds: int | None

    @property
    def wrong(self) -> int | None:
        """The number of wrong values; None if nothing was compared."""
        counted = [row.wrong for row in self.rows if row.wrong is not None]
        if not counted and not self.out_of_bounds:
            return None
        return max(sum(counted), self.out_of_bounds or 0)


def read_table(text: str) -> Table:
    """The table in the output of a program, without other lines and a last line that was cut off.

    Raises ValueError for an unknown column, and for a row that does not match its header."""
    columns: list[str] = []
    rows: list[Row] = []
    bounds = None
    whole = text if text.endswith("\n") else text.rpartition("\n")[0]
    for line in host_text.lines(whole):
        words = line.lstrip("# ").split() if not line.lstrip().startswith("#wrong") else line.split()
        if words[:1] == ["size"] and "busbw" in words:
            columns = _columns(words)
        elif match := re.search(r"Out of bounds values *: *(\d+)", line):
            bounds = host_text.integer(match[1])
        elif columns and words and re.fullmatch(r"\d[\d_]*", words[0]) and not line.lstrip().startswith("#"):
            rows.append(_row(words, columns, line))
    return Table(tuple(rows), bounds)


def _columns(words: Sequence[str]) -> list[str]:
    """The names of the columns from the first `time` on. Raises ValueError for an unknown one."""
    odd = next((word for word in words if word not in (*_LEADING, *_GROUP)), None)
    start = next((number for number, word in enumerate(words) if word in _TIMES), None)
    if odd is not None or start is None:
        raise ValueError(f"nccl-tests: a column {odd!r} that is not known in {' '.join(words)[:80]!r}")
    return list(words[start:])


def _row(words: Sequence[str], columns: Sequence[str], line: str) -> Row:
    values = words[-len(columns) :]
    try:
        if not len(columns) < len(words) <= len(columns) + len(_LEADING):
            raise ValueError(len(words))
        named = list(zip(columns, values, strict=True))
        speeds = [float(value) for name, value in named if name == "busbw"]
        counts = [int(float(value)) for name, value in named if name == "#wrong" and value != "N/A"]
        for name, value in named:  # not all are used, but all must be numbers
            missing = value == "N/A" and name in ("error", "#wrong")
            if not missing and not 0 <= float(value) < math.inf and name != "error":
                raise ValueError(value)
        deviations = [value for name, value in named if name == "error" and value != "N/A"]
        size = host_text.integer(words[0].replace("_", ""))
    except (ValueError, OverflowError):
        raise ValueError(f"nccl-tests: cannot read the row {line.strip()[:120]!r}") from None
    return Row(size, max(speeds), sum(counts) if counts else 0 if deviations else None)
