"""How warm a machine's GPUs were and what they drew of late, as small plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

WIDTH, HEIGHT, TOP, BOTTOM = 240.0, 56.0, 4.0, 52.0
SLOTS = 56

Series = Sequence[tuple[float, float]]
"""A time and a value each, oldest first."""

Machines = Sequence[Sequence[Series]]
"""Of each machine that is drawn together, the series of its GPUs."""

CARRIED_S = 1.25 * 86400
"""So long a reading stands for those after it: a report a day is one line, and a machine that went away ends."""


@dataclass(frozen=True)
class Trend:
    """Paths in a box of 240 x 56, with gaps where nothing is known: `area`, and `line` along its upper edge; `low` and `high` are the axis' ends, `now` the last
    value and where it stands, `limit` the height of a line that should not be crossed (None where it is outside)."""

    area: str
    line: str
    low: float
    high: float
    now: float
    x: float
    y: float
    limit: float | None
    words: str


def slots(gpus: Sequence[Series], begin: float, end: float) -> list[list[float | None]]:
    """The values of a machine's GPUs in each of SLOTS spans of a time: the last one in it, else that before for as long as the
    machine was not asked, CARRIED_S at most; None before the first, and of a GPU that no longer tells while others do."""
    rows = [_told(one, begin, end) for one in gpus]
    asked = [any(row[number] is not None for row in rows) for number in range(SLOTS)]
    most = math.ceil(CARRIED_S / max(end - begin, 1e-9) * SLOTS)
    for row in rows:
        age = 0
        for number in range(1, SLOTS):
            age = 0 if row[number] is not None else age + 1
            if row[number] is None and not asked[number] and age <= most:
                row[number] = row[number - 1]
    return rows


def _told(series: Series, begin: float, end: float) -> list[float | None]:
    found: list[float | None] = [None] * SLOTS
    for at, value in series:
        if begin <= at <= end:
            found[min(SLOTS - 1, int((at - begin) / max(end - begin, 1e-9) * SLOTS))] = value
    return found


def _columns(machines: Machines, begin: float, end: float) -> list[list[float]]:
    """What was known in each span."""
    rows = [row for gpus in machines for row in slots(gpus, begin, end)]
    return [[value for row in rows if (value := row[number]) is not None] for number in range(SLOTS)]


def spread(machines: Machines, begin: float, end: float, limit: float | None = None) -> Trend | None:
    """The band between the least and the most of all; None where there are no two times."""
    columns = _columns(machines, begin, end)
    low = [min(column) if column else None for column in columns]
    high = [max(column) if column else None for column in columns]
    return _drawn(low, high, _several(machines), limit, None)


def total(machines: Machines, begin: float, end: float, limit: float | None = None) -> Trend | None:
    """The sum of all, above zero; None where there are no two times."""
    sums = [sum(column) if column else None for column in _columns(machines, begin, end)]
    return _drawn([None if one is None else 0.0 for one in sums], sums, _several(machines), limit, 0.0)


def _several(machines: Machines) -> bool:
    return len({round(at) for gpus in machines for one in gpus for at, _ in one}) > 1


def _drawn(
    low: Sequence[float | None], high: Sequence[float | None], several: bool, limit: float | None, floor: float | None
) -> Trend | None:
    known = [number for number, value in enumerate(high) if value is not None]
    if not several or not known:
        return None
    values = [value for value in (*low, *high) if value is not None]
    below, above = _axis(min(values), max(values)) if floor is None else (floor, _round_up(max(*values, limit or 0.0)))

    def point(number: int, value: float | None) -> tuple[float, float]:
        share = ((value or 0.0) - below) / (above - below)
        return round(WIDTH * number / (SLOTS - 1), 1), round(BOTTOM - (BOTTOM - TOP) * share, 1)

    runs = [[number for _, number in run] for _, run in groupby(enumerate(known), lambda one: one[1] - one[0])]
    upper = [_stroke([point(number, high[number]) for number in run]) for run in runs]
    lower = [[point(number, low[number]) for number in reversed(run)] for run in runs]
    peak = max(value for value in high if value is not None)
    now = next(value for value in reversed(high) if value is not None)
    return Trend(
        "".join(f"{_path([*above_, *below_])}Z" for above_, below_ in zip(upper, lower, strict=True)),
        "".join(map(_path, upper)), below, above, now, *upper[-1][-1],
        point(0, limit)[1] if limit is not None and below <= limit <= above else None,
        f"last {now:.0f}, at most {peak:.0f}",
    )  # fmt: skip


def _stroke(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """A line of one point is a short stroke."""
    return points if len(points) > 1 else [(max(0.0, points[0][0] - 4), points[0][1]), *points]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _axis(low: float, high: float) -> tuple[float, float]:
    """An axis in tens around values, 20 long at least."""
    below, above = math.floor(low / 10) * 10, math.ceil(high / 10) * 10
    return float(below), float(max(above, below + 20))


def _round_up(value: float) -> float:
    """1, 2 or 5 with noughts, or a half between, at or above a value."""
    power = 10.0 ** math.floor(math.log10(max(value, 1.0)))
    return next(step * power for step in (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0) if step * power >= value)
