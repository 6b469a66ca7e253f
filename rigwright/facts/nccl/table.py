"""Parses the output of NVIDIA's nccl-tests: the table of sizes and speeds, and the number of wrong values.

Rows are read from the right by the header, because `redop` and `root` are missing in some versions and blank in others.

    size count type redop time algbw busbw error time algbw busbw error           until 2021; error: largest deviation
    size count type redop root time algbw busbw #wrong time algbw busbw #wrong    since; #wrong: number of wrong values
    ... time algbw busbw #wrong i_min i_max i_p99 i_cv% ...                       with a report of every iteration
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from msgspec import Struct

from rigwright.core import host_text

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


def read(text: str) -> Table:
    """The table in a text. Ignores other lines, and a last line that was cut off. Raises ValueError for a row that does
    not match its header, and for an unknown column."""
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
