"""The page of a recording: a plot of the power of each GPU, of all together and of the 12 V rail, with their peaks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from rigwright.core.schema import BusId
from rigwright.features.power.watch_table import label, slowed
from rigwright.features.recorder.checks import clock, day
from rigwright.features.recorder.facts import GAP_S, Recording
from rigwright.report.html.host_page import environment
from rigwright.report.labels import SIGNS, WORDS

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640.0, 200.0, 66.0, 8.0, 24.0, 30.0
COLUMNS = 280
"""Columns of a plot. Each shows the lowest and the highest value of its time, so that no peak is lost."""
_STEPS = (1, 2, 2.5, 5, 10)


class Tick(Struct, frozen=True):
    """A position on an axis and its text."""

    at: float
    text: str


class Spot(Struct, frozen=True):
    """A marked value: its place, its text, and whether the text stands at its left."""

    x: float
    y: float
    text: str
    is_left: bool


class Plot(Struct, frozen=True):
    """A plot in a box of WIDTH x HEIGHT. `limit`: y of the power limit's line; `begins`: x of the begins of a load's
    parts."""

    title: str
    about: str
    line: str
    ticks_x: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]
    spot: Spot | None
    limit: float | None
    limit_text: str
    begins: tuple[float, ...]


def page(host: str, found: Recording, slots: Mapping[BusId, str], simulated: str = "") -> str:
    """The page of a recording as one HTML file."""
    rows = []
    for number, gpu in enumerate(found.gpus):
        peak = found.peak(number)
        at = clock(found, peak.most_w_t, 1) if peak.most_w_t is not None else ""
        name = label(gpu.bus_id, slots) or f"GPU {number}"
        rows.append({"name": name, "gpu": gpu, "peak": peak, "at": at, "slowed": slowed(peak)})
    highest = found.highest_sum()
    lowest = found.lowest_voltage()
    return environment().get_template("power.html.j2").render(
        host=host, simulated=simulated, found=found, rows=rows, plots=plots(found, slots), words=WORDS, signs=SIGNS,
        highest=highest and f"{highest[0]:.0f} W at {clock(found, highest[1], 1)}",
        lowest=lowest and f"{lowest.volts:.2f} V at {clock(found, lowest.t)}",
        span=f"{day(found)} {clock(found, found.first_t)} to {clock(found, found.last_t)}",
        xids=[f"{clock(found, xid.t, 1)} Xid {xid.code} on {label(xid.bus_id, slots)}" for xid in found.xids[:50]],
        gaps=[f"{clock(found, gap.t, 1)}: no sample for {gap.seconds:.1f} s" for gap in found.gaps[:50]],
        width=WIDTH, height=HEIGHT, left=LEFT, right=RIGHT, bottom=BOTTOM, top=TOP,
    )  # fmt: skip


def plots(found: Recording, slots: Mapping[BusId, str]) -> tuple[Plot, ...]:
    """A plot for each GPU, of all together if they are several, and of the 12 V rail if it was read."""
    series = found.series
    made = []
    for number, gpu in enumerate(found.gpus):
        name = label(gpu.bus_id, slots) or f"GPU {number}"
        drawn = _plot(found, name, gpu.name, "W", series.m, series.power_w[number], gpu.limit_w)
        made += [drawn] if drawn else []
    if len(found.gpus) > 1:
        sums = [math.nan if (total := found.sum_w(row)) is None else total for row in range(len(series))]
        drawn = _plot(found, "All GPUs together", "", "W", series.m, sums, None)
        made += [drawn] if drawn else []
    times = [voltage.m for voltage in found.voltages]
    drawn = _plot(found, "12 V rail", "", "V", times, [voltage.volts for voltage in found.voltages], None)
    made += [drawn] if drawn else []
    return tuple(made)


def _plot(
    found: Recording,
    title: str,
    about: str,
    unit: str,
    times: Sequence[float],
    values: Sequence[float],
    limit: float | None,
) -> Plot | None:
    """The plot of values over the time of the recording; None with fewer than two. Watts start at zero, and their
    highest value is marked; of volts the lowest is."""
    known = [(m, value) for m, value in zip(times, values, strict=True) if not math.isnan(value)]
    if len(known) < 2 or len(found.series) < 2:
        return None
    begin, end = found.series.m[0], max(found.series.m[-1], found.series.m[0] + 0.1)
    is_power = unit == "W"
    low = 0.0 if is_power else min(value for _, value in known)
    high = max(limit or 0.0, *(value for _, value in known))
    ticks = _ticks(low, high, 4)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def x(m: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (m - begin) / (end - begin), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / (high - low or 1), 1)

    marked = (max if is_power else min)(known, key=lambda pair: pair[1])
    began = found.series.t[0]
    text = f"{marked[1]:.0f} W" if is_power else f"{marked[1]:.2f} V"
    spot = Spot(
        x(marked[0]), y(marked[1]), f"{text} at {clock(found, began + marked[0] - begin, 1)}", x(marked[0]) > WIDTH / 2
    )
    seconds = end - begin
    within = [mark.t - began for mark in found.marks if mark.event == "begin"]
    return Plot(
        title,
        about,
        _line([(x(m), y(value), m) for m, value in known], max(GAP_S, 3 * seconds / COLUMNS, 0 if is_power else 30.0)),
        tuple(Tick(x(m), clock(found, began + m - begin)) for m in _times(begin, end)),
        tuple(Tick(y(value), f"{value:g}" if is_power else f"{value:.2f}") for value in ticks),
        spot,
        y(limit) if limit is not None else None,
        f"limit {limit:.0f} W" if limit is not None else "",
        tuple(x(begin + t) for t in within if 0 <= t <= seconds),
    )


def _line(points: Sequence[tuple[float, float, float]], gap_s: float) -> str:
    """The path through points (x, y, time), with the lowest and the highest of each column, and a break at each gap."""
    path: list[str] = []
    column: list[tuple[float, float, float]] = []
    width = (WIDTH - LEFT - RIGHT) / COLUMNS
    before = -math.inf

    def draw() -> None:
        extremes = sorted(
            {min(column, key=lambda one: one[1]), max(column, key=lambda one: one[1])}, key=lambda one: one[2]
        )
        kept = [column[0], *extremes, column[-1]]
        for number, (px, py, _) in enumerate(dict.fromkeys(kept)):
            path.append(f"{'M' if starts and not number else 'L'}{px:g} {py:g}")

    starts = True
    for point in points:
        is_gap = point[2] - before > gap_s
        if column and (is_gap or int(point[0] / width) != int(column[0][0] / width)):
            draw()
            column, starts = [], is_gap
        column.append(point)
        before = point[2]
    draw()
    return "".join(path)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round values from at or below `low` to at or above `high`."""
    span = max(high - low, 0.05)
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(factor * power for factor in _STEPS if factor * power * most >= span)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 4) for number in range(first, last + 1)]


def _times(begin: float, end: float) -> list[float]:
    """Five times from the begin to the end."""
    return [begin + (end - begin) * part / 4 for part in range(5)]
