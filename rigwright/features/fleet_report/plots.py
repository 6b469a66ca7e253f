"""Small plots of the temperature and power of GPUs over the last days."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct

WIDTH, HEIGHT, TOP, BOTTOM = 240.0, 56.0, 4.0, 52.0
SLOTS = 56

Series = Sequence[tuple[float, float]]
"""Pairs of time (seconds since 1970) and value, oldest first."""

Machines = Sequence[Sequence[Series]]
"""For each machine of a plot, the series of its GPUs."""

Values = Sequence[float | None]
"""The values of a plot, one for each time slot."""

CARRIED_S = 1.25 * 86400
"""How long a reading is carried forward: long enough that one report a day makes a continuous line."""


class Trend(Struct, frozen=True):
    """SVG paths in a box of 240 x 56, with gaps where nothing is known: `area`, and `line` along its upper edge. `low`,
    `high`: the ends of the axis; `now` at (`x`, `y`): the last value; `limit`: y of the limit's line, None outside the
    box."""

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
    """For each GPU of a machine its last value in each of SLOTS time slots. A slot in which no GPU of the machine has a
    value repeats the slot before, for at most CARRIED_S; otherwise a missing value is None."""
    width_s = max(end - begin, 1e-9) / SLOTS
    rows: list[list[float | None]] = [[None] * SLOTS for _ in gpus]
    for row, series in zip(rows, gpus, strict=True):
        for at, value in series:
            if begin <= at <= end:
                row[min(SLOTS - 1, int((at - begin) / width_s))] = value
    has_value = [any(row[number] is not None for row in rows) for number in range(SLOTS)]
    most = math.ceil(CARRIED_S / width_s)
    for row in rows:
        age = 0
        for number in range(1, SLOTS):
            age = 0 if row[number] is not None else age + 1
            if row[number] is None and not has_value[number] and age <= most:
                row[number] = row[number - 1]
    return rows


def _columns(machines: Machines, begin: float, end: float) -> list[list[float]]:
    rows = [row for gpus in machines for row in slots(gpus, begin, end)]
    return [[value for row in rows if (value := row[number]) is not None] for number in range(SLOTS)]


def spread(machines: Machines, begin: float, end: float, limit: float | None = None) -> Trend | None:
    """The band from the lowest to the highest value; None with fewer than two times."""
    columns = _columns(machines, begin, end)
    low = [min(column) if column else None for column in columns]
    high = [max(column) if column else None for column in columns]
    return _trend(machines, low, high, limit, None)


def total(machines: Machines, begin: float, end: float, limit: float | None = None) -> Trend | None:
    """The sum of all values, above zero; None with fewer than two times."""
    sums = [sum(column) if column else None for column in _columns(machines, begin, end)]
    return _trend(machines, [None if value is None else 0.0 for value in sums], sums, limit, 0.0)


def _trend(machines: Machines, low: Values, high: Values, limit: float | None, floor: float | None) -> Trend | None:
    known = [number for number, value in enumerate(high) if value is not None]
    times = {round(at) for gpus in machines for series in gpus for at, _ in series}
    if len(times) < 2 or not known:
        return None
    values = [value for value in (*low, *high) if value is not None]
    if floor is None:  # tens, at least 20 apart
        below = math.floor(min(values) / 10) * 10.0
        above = max(math.ceil(max(values) / 10) * 10.0, below + 20)
    else:
        below, above = floor, _round_up(max(*values, limit or 0.0))

    def point(number: int, value: float | None) -> tuple[float, float]:
        share = ((value or 0.0) - below) / (above - below)
        return round(WIDTH * number / (SLOTS - 1), 1), round(BOTTOM - (BOTTOM - TOP) * share, 1)

    runs = [[number for _, number in run] for _, run in groupby(enumerate(known), lambda pair: pair[1] - pair[0])]
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
    """The points of a line; a single point becomes a short line."""
    return points if len(points) > 1 else [(max(0.0, points[0][0] - 4), points[0][1]), *points]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _round_up(value: float) -> float:
    """The next round number at or above a value."""
    power = 10.0 ** math.floor(math.log10(max(value, 1.0)))
    return next(step * power for step in (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0) if step * power >= value)
