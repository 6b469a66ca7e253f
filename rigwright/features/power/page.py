"""The page of a recording: plots of the power of each GPU, of their sum, and of the 12 V rail, with their peaks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter

from msgspec import Struct

from rigwright.core.schema import BusId
from rigwright.features.power.watch_table import gpu_name, label, slowed
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
    """A marked value: its place, its text, and whether the text is at its left."""

    x: float
    y: float
    text: str
    is_left: bool


class Plot(Struct, frozen=True):
    """A plot in a box of WIDTH x HEIGHT. `limit`: y of the power limit; `begins`: x of each begin of a load."""

    title: str
    about: str
    line: str
    ticks_x: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]
    spot: Spot
    limit: float | None
    limit_text: str
    begins: tuple[float, ...]


def page(host: str, recording: Recording, slots: Mapping[BusId, str], simulated: str = "") -> str:
    """The page of a recording as one HTML file."""
    rows = []
    for number, gpu in enumerate(recording.gpus):
        peak = recording.peak(number)
        at = clock(recording, peak.most_w_t, 1) if peak.most_w_t is not None else ""
        name = gpu_name(recording, number, slots)
        rows.append({"name": name, "gpu": gpu, "peak": peak, "at": at, "slowed": slowed(peak)})
    highest = recording.highest_sum()
    lowest = recording.lowest_voltage()
    xids = [f"{clock(recording, xid.t, 1)} Xid {xid.code} on {label(xid.bus_id, slots)}" for xid in recording.xids[:50]]
    return environment().get_template("power.html.j2").render(
        host=host, simulated=simulated, found=recording, rows=rows, plots=plots(recording, slots),
        highest=highest and f"{highest[0]:.0f} W at {clock(recording, highest[1], 1)}",
        lowest=lowest and f"{lowest.volts:.2f} V at {clock(recording, lowest.t)}",
        span=f"{day(recording)} {clock(recording, recording.first_t)} to {clock(recording, recording.last_t)}",
        xids=xids,
        gaps=[f"{clock(recording, gap.t, 1)}: no sample for {gap.seconds:.1f} s" for gap in recording.gaps[:50]],
        words=WORDS, signs=SIGNS, width=WIDTH, height=HEIGHT, left=LEFT, right=RIGHT, bottom=BOTTOM, top=TOP,
    )  # fmt: skip


def plots(recording: Recording, slots: Mapping[BusId, str]) -> list[Plot]:
    """A plot for each GPU, for the sum of several GPUs, and for the 12 V rail; each only if it has two samples."""
    series = recording.series
    drawn = []
    for number, gpu in enumerate(recording.gpus):
        name, watts = gpu_name(recording, number, slots), series.power_w[number]
        drawn.append(_plot(recording, name, gpu.name, "W", series.m, watts, gpu.limit_w))
    if len(recording.gpus) > 1:
        sums = [math.nan if (total := recording.sum_w(row)) is None else total for row in range(len(series))]
        drawn.append(_plot(recording, "All GPUs together", "", "W", series.m, sums))
    times, volts = [reading.m for reading in recording.voltages], [reading.volts for reading in recording.voltages]
    drawn.append(_plot(recording, "12 V rail", "", "V", times, volts))
    return [plot for plot in drawn if plot is not None]


def _plot(
    recording: Recording, title: str, about: str, unit: str, times: Sequence[float], values: Sequence[float],
    limit: float | None = None,
) -> Plot | None:  # fmt: skip
    """The plot of values over the time of the recording; None for fewer than two values.

    The axis of watts starts at zero. The highest power is marked, and the lowest voltage.
    """
    known = [(m, value) for m, value in zip(times, values, strict=True) if not math.isnan(value)]
    if len(known) < 2 or len(recording.series) < 2:
        return None
    begin, end = recording.series.m[0], max(recording.series.m[-1], recording.series.m[0] + 0.1)
    is_power = unit == "W"
    low = 0.0 if is_power else min(value for _, value in known)
    high = max(limit or 0.0, *(value for _, value in known))
    ticks = _ticks(low, high, 4)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def x(m: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (m - begin) / (end - begin), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / (high - low or 1), 1)

    spot_m, extreme = (max if is_power else min)(known, key=lambda pair: pair[1])
    began, seconds = recording.series.t[0], end - begin
    text = f"{extreme:.0f} W" if is_power else f"{extreme:.2f} V"
    since = [mark.t - began for mark in recording.marks if mark.event == "begin"]
    return Plot(
        title,
        about,
        _line([(x(m), y(value), m) for m, value in known], max(GAP_S, 3 * seconds / COLUMNS, 0 if is_power else 30.0)),
        tuple(Tick(x(begin + t), clock(recording, began + t)) for t in (seconds * part / 4 for part in range(5))),
        tuple(Tick(y(value), f"{value:g}" if is_power else f"{value:.2f}") for value in ticks),
        Spot(x(spot_m), y(extreme), f"{text} at {clock(recording, began + spot_m - begin, 1)}", x(spot_m) > WIDTH / 2),
        y(limit) if limit is not None else None,
        f"limit {limit:.0f} W" if limit is not None else "",
        tuple(x(begin + t) for t in since if 0 <= t <= seconds),
    )


def _line(points: Sequence[tuple[float, float, float]], gap_s: float) -> str:
    """The path through points (x, y, time), with the lowest and the highest of each column, and a break at each gap."""
    path: list[str] = []
    column: list[tuple[float, float, float]] = []
    width = (WIDTH - LEFT - RIGHT) / COLUMNS
    before = -math.inf

    def draw() -> None:
        y, time = itemgetter(1), itemgetter(2)
        extremes = sorted((min(column, key=y), max(column, key=y)), key=time)
        for number, (px, py, _) in enumerate(dict.fromkeys([column[0], *extremes, column[-1]])):
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
