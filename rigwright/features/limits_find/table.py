"""A sweep over limits as text: the plan, a row for each point, the line where the supplies end, and the best points."""

from __future__ import annotations

from rich.console import Console

from rigwright.core.numbers import count
from rigwright.features.limits_find.points import (
    CLOCKS_REASON,
    NAMES,
    Point,
    Sweep,
    SweepPlan,
    held_by_clocks,
    in_words,
)
from rigwright.report.labels import as_is
from rigwright.report.tables import with_columns, write, write_labels
from rigwright.report.wrapping import hanging

REASONS = {
    CLOCKS_REASON: "clocks",
    0x4: "power",
    0x10: "sync",
    0x80: "brake",
    0x40: "too hot",
    0x20: "heat",
    0x8: "slowdown",
}
"""NVML's reasons for a lower clock (nvml.h, nvmlClocksEventReason). 0x8 is shown only without `brake` and `too hot`."""
_LEGEND = (
    "W: of all GPUs, and of the one that draws most; per W: GFLOPS per watt of the GPUs; MHz: the slowest clock;"
    " °C: the hottest GPU. Held by: power, the power limit; clocks, a clock limit; heat, too hot, brake and slowdown,"
    " the GPU or its supply."
)
_CAVEAT = (
    "The load is products of matrices of 32-bit floats. It is not your training, which waits for memory, data and"
    " other GPUs: that draws less at the same limit, and a limit costs it less, mostly. Measure your own at the limit"
    " that you take and at the highest."
)


def announce(console: Console, host: str, planned: SweepPlan) -> None:
    """Writes what a sweep will do, before the question for consent."""
    sweep = planned.sweep
    gpus = as_is(" and ".join(sweep.groups.values()))
    seconds = round(10 + len(sweep.points) * (planned.settle_s + planned.seconds))
    time = f"{seconds} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    what = "graphics clock" if sweep.unit == "MHz" else "power limit"
    first, last = (in_words(sweep.points[at].limits, sweep.unit) for at in (0, -1))
    points = f"{count(len(sweep.points), 'point')}, {what} {first} to {last}, about {time}"
    hanging(console, f"[bold]{as_is(host)}[/]: {gpus}; {points}")
    begin = "supplies:" if planned.supplies.rig is not None else "[yellow]![/] supplies not known:"
    hanging(console, f"  {begin} {as_is(sweep.supplies)}")
    if sweep.ends is not None:
        end = as_is(f"{in_words(sweep.ends.limits, sweep.unit)} is beyond them: {sweep.ends.why}")
        beyond = any(point.verdict == "does not fit" for point in sweep.points)
        style, more = ("bold red", "; measured nevertheless") if beyond else ("yellow", "")
        hanging(console, f"  [{style}]![/] {end}{more}")
    for note in planned.notes:
        hanging(console, f"  [yellow]![/] {as_is(note)}")
    hanging(console, "  All GPUs compute at full load meanwhile. The limits are as before afterwards.")


def show(console: Console, sweep: Sweep) -> None:
    """Writes the measured points, and the best of them."""
    console.print()
    most = max((point.tflops or 0 for point in sweep.points), default=0)
    rows = [_cells(sweep, point, most) for point in sweep.points]
    widths = [max(len(title), *(len(row[at]) for row in rows)) for at, title in enumerate(_TITLES)]
    split = next((at for at, point in enumerate(sweep.points) if point.verdict == "does not fit"), len(rows))
    for number, part in enumerate((rows[:split], rows[split:])):
        titles, *aligned = [
            [*(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]]
            for row in (_TITLES, *part)
        ]
        table = with_columns(*titles)
        table.show_header = number == 0
        for row in aligned:
            table.add_row(*row)
        if part:
            write(console, table)
        if number == 0 and sweep.ends is not None:
            end = f"{in_words(sweep.ends.limits, sweep.unit)}: {as_is(sweep.ends.why)}"
            text = f"--- the supplies end here ({as_is(sweep.supplies)}): {end}"
            hanging(console, f"[bold yellow]{text}[/]", 4)
    console.print()
    _write_best(console, sweep, most)
    for where, what in sweep.errors.items():
        hanging(console, f"[yellow]not measured[/]: {as_is(where)}: {as_is(what)}", 4)
    hanging(console, f"[dim]{_LEGEND}[/]", 0)
    hanging(console, _CAVEAT, 0)


_TITLES = ["limit", "TFLOPS", "speed", "W", "W max", "per W", "MHz", "°C", "held by"]


def _cells(sweep: Sweep, point: Point, most: float) -> list[str]:
    watts = [gpu.power_w for gpu in point.sensors if gpu.power_w is not None]
    return [
        in_words(point.limits, sweep.unit),
        _number(point.tflops, 1),
        f"{100 * point.tflops / most:.0f} %" if point.tflops and most else "-",
        _number(point.watts),
        _number(max(watts, default=None)),
        _number(point.per_watt, 1),
        _number(point.clock_mhz),
        _number(point.temperature_c),
        held_by(point.reasons),
    ]


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def held_by(reasons: int | None) -> str:
    """NVML's reasons for a lower clock in words: `power, heat`."""
    if reasons is None:
        return "-"
    words = [word for bit, word in REASONS.items() if reasons & bit]
    if "slowdown" in words and {"brake", "too hot"} & set(words):
        words.remove("slowdown")
    return ", ".join(words) or "nothing"


def _write_best(console: Console, sweep: Sweep, most: float) -> None:
    rows: list[tuple[str, str]] = []
    tight: dict[str, list[str]] = {}
    for name, rule in NAMES.items():
        if name in sweep.named:
            point = sweep.points[sweep.named[name]]
            speed = f"{100 * (point.tflops or 0) / most:.0f} % of the speed" if most else ""
            watts = f", {point.watts:.0f} W" if point.watts is not None else ""
            rows.append((name, f"[bold]{in_words(point.limits, sweep.unit)}[/]: {speed}{watts}; {rule}"))
            if point.verdict == "tight":
                tight.setdefault(point.why, []).append(name)
    if held_by_clocks(sweep.points):
        equal = "all points are equally fast, because the limit of the clocks holds the GPUs: limits.find --clocks measures the clocks"
        hanging(console, f"[yellow]![/] {equal}", 2)
    write_labels(console, rows)
    for why, names in tight.items():
        hanging(console, f"[yellow]![/] tight for the supplies ({', '.join(names)}): {as_is(why)}", 2)
