"""How warm a machine's GPUs were and what they drew of late, as small plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, TOP, BOTTOM = 240.0, 56.0, 4.0, 52.0
SLOTS = 56

Series = Sequence[tuple[float, float]]
"""A time and a value each, oldest first."""


@dataclass(frozen=True)
class Trend:
    """Paths in a box of 240 x 56: `area`, and `line` along its upper edge; `low` and `high` are the axis' ends, `now` the last
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


def slots(series: Series, begin: float, end: float) -> list[float | None]:
    """The value in each of SLOTS spans of a time: the last one in it, else that before; None before the first."""
    found: list[float | None] = [None] * SLOTS
    for at, value in series:
        if begin <= at <= end:
            found[min(SLOTS - 1, int((at - begin) / max(end - begin, 1e-9) * SLOTS))] = value
    for number in range(1, SLOTS):
        if found[number] is None:
            found[number] = found[number - 1]
    return found


def spread(gpus: Sequence[Series], begin: float, end: float, limit: float | None = None) -> Trend | None:
    """The band between the least and the most of all; None where there are no two times."""
    columns = [
        [value for value in column if value is not None]
        for column in zip(*(slots(one, begin, end) for one in gpus), strict=True)
    ]
    low = [min(column) if column else None for column in columns]
    high = [max(column) if column else None for column in columns]
    return _drawn(low, high, _several(gpus), limit, None)


def total(gpus: Sequence[Series], begin: float, end: float, limit: float | None = None) -> Trend | None:
    """The sum of all, above zero; None where there are no two times."""
    columns = zip(*(slots(one, begin, end) for one in gpus), strict=True)
    sums = [sum(told) if (told := [value for value in column if value is not None]) else None for column in columns]
    return _drawn([None if one is None else 0.0 for one in sums], sums, _several(gpus), limit, 0.0)


def _several(gpus: Sequence[Series]) -> bool:
    return len({round(at) for one in gpus for at, _ in one}) > 1


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

    upper = [point(number, high[number]) for number in known]
    if len(upper) == 1:
        upper.insert(0, (upper[0][0] - 6, upper[0][1]))  # so short a past is a stroke
    lower = [point(number, low[number]) for number in reversed(known)]
    peak = max(value for value in high if value is not None)
    now = next(value for value in reversed(high) if value is not None)
    return Trend(
        f"{_path([*upper, *lower])}Z", _path(upper), below, above, now, *upper[-1],
        point(0, limit)[1] if limit is not None and below <= limit <= above else None,
        f"now {now:.0f}, at most {peak:.0f}",
    )  # fmt: skip


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
