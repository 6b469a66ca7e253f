"""A try as text: what was measured before and after, side by side, with what is a difference and what is noise."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from rigwright.checks.temperatures import WARMER_IN_TRIAL_C
from rigwright.core.numbers import count
from rigwright.features.try_.attempt import (
    LEAST_PERCENT,
    QUANTITIES,
    WORDS,
    Attempt,
    Comparison,
    Judgement,
    Measurement,
    Row,
    row,
)
from rigwright.report.labels import as_is
from rigwright.report.tables import with_columns, write, write_labels
from rigwright.report.wrapping import hanging

_JUDGED: dict[Judgement, str] = {
    "better": "[bold green]better[/]",
    "worse": "[bold red]worse[/]",
    "higher": "higher",
    "lower": "lower",
    "noise": "[dim]noise[/]",
    "unknown": "[yellow]unknown[/]",
}
_COLOURS = {"faster": "bold green", "same": "bold", "slower": "bold red", "mixed": "bold yellow", "refused": "bold red"}
_SHOWN = 6
"""The number of failures that are listed."""


def show(console: Console, tried: Attempt) -> None:
    """Writes one measurement, or two with their comparison; and why the change failed."""
    console.print()
    if tried.comparison is not None and tried.before is not None and tried.after is not None:
        _compared(console, tried, tried.comparison, tried.before, tried.after)
    elif tried.before is not None:
        _measured(console, tried.before)
    if tried.failure:
        hanging(console, f"[bold red]failed[/]: {as_is(tried.failure)}", 4)


def _measured(console: Console, measured: Measurement) -> None:
    rows = [_test_cells(measured)]
    for name in QUANTITIES:
        if name in measured.rounds:
            one = row(name, measured.rounds[name], ())
            rows.append([QUANTITIES[name].title, QUANTITIES[name].unit, _value(one.before, one.before_spread)])
    _write(console, ("measured", "unit", "value"), rows)
    _missing(console, measured)
    write_labels(console, [(name, as_is(text)) for name, text in measured.conditions.items()], "  ")


def _missing(console: Console, measured: Measurement) -> None:
    for part, why in measured.missing.items():
        hanging(console, f"[yellow]not measured[/]: {as_is(part)}: {as_is(why)}", 4)
    for name, outcome in list(measured.failures.items())[:_SHOWN]:
        hanging(console, f"[bold red]{as_is(outcome)}[/]: {as_is(name)}", 4)


def _write(console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes the rows as a table of up to 80 columns; the numbers, from the third column to the fifth, end below each
    other."""
    table = with_columns(*titles)
    widths = [max(len(row[at]) for row in rows) for at in range(len(titles))]
    for cells in rows:
        table.add_row(*(cell.rjust(widths[at]) if 2 <= at <= 4 else cell for at, cell in enumerate(cells)))
    write(console, table)


def _test_cells(*measured: Measurement) -> list[str]:
    return ["peer-to-peer test", "passed", *(f"{one.passed} of {one.passed + len(one.failures)}" for one in measured)]


def _compared(
    console: Console, tried: Attempt, comparison: Comparison, before: Measurement, after: Measurement
) -> None:
    rows = [[*_test_cells(before, after), "", _test_judged(before, after)]]
    rows += [
        _cells(one) for one in comparison.rows if one.quantity in QUANTITIES
    ]  # the history may be of another version
    _write(console, ("measured", "unit", "before", "after", "change", ""), rows)
    rounds = max((len(values) for values in (*before.rounds.values(), *after.rounds.values())), default=0)
    noise = f"Medians of {count(rounds, 'round')} ± half of their range. Noise: the ranges overlap, or the medians"
    hanging(console, f"[dim]{noise} are within {LEAST_PERCENT:g} %.[/]", 0)
    if before.transport != after.transport:
        hanging(
            console,
            f"NCCL connects the GPUs by {as_is(after.transport or '?')} in place of {as_is(before.transport or '?')}",
            4,
        )
    for label, texts, colour in (
        ("fails", comparison.broken, "bold red"),
        ("repaired", comparison.repaired, "bold green"),
    ):
        for text in texts[:_SHOWN]:
            hanging(console, f"[{colour}]{label}[/]: {as_is(text)}", 4)
        if len(texts) > _SHOWN:
            hanging(console, f"  and {len(texts) - _SHOWN} more")
    _warmer(console, comparison)
    _differing(console, tried, comparison)
    style = _COLOURS[comparison.verdict]
    hanging(console, f"[{style}]{WORDS[comparison.verdict]}[/]", 4)


def _warmer(console: Console, comparison: Comparison) -> None:
    """Warns where a speed differs and the GPUs had another temperature, which changes their clocks by itself."""
    decisive = any(one.judgement in ("better", "worse") for one in comparison.rows)
    for one in comparison.rows:
        if one.quantity == "temperature" and one.before is not None and one.after is not None and decisive:
            degrees = one.after - one.before
            if abs(degrees) >= WARMER_IN_TRIAL_C:
                word = "warmer" if degrees > 0 else "cooler"
                text = f"The hottest GPU was {abs(degrees):.0f} °C {word} after. A warmer GPU may run at lower clocks,"
                hanging(
                    console,
                    f"[yellow]![/] {text} by the change or before it had warmed up: measure again with --again.",
                    4,
                )


def _differing(console: Console, tried: Attempt, comparison: Comparison) -> None:
    """What was different in force: more than one thing, or nothing, is named, because a difference then has no known
    cause."""
    by = tried.change or tried.note or "the change"
    if not comparison.differs:
        note = f" ({tried.note})" if tried.note else ""
        hanging(console, f"[yellow]![/] Nothing that can be read here differs in force{as_is(note)}.", 4)
        return
    hanging(console, "[dim]In force:[/]")
    write_labels(
        console,
        [
            (one.name, f"{as_is(one.before or 'none')} [dim]->[/] {as_is(one.after or 'none')}")
            for one in comparison.differs
        ],
        "  ",
    )
    if len(comparison.differs) > 1:
        names = ", ".join(one.name for one in comparison.differs)
        text = f"{len(comparison.differs)} things differ ({names}): the measurement does not tell them apart from {by}."
        hanging(console, f"[yellow]![/] {as_is(text)}", 4)


def _test_judged(before: Measurement, after: Measurement) -> str:
    fails = set(after.failures) - set(before.failures)
    repaired = set(before.failures) - set(after.failures)
    return "[bold red]fails[/]" if fails else "[bold green]better[/]" if repaired else "[dim]same[/]"


def _cells(one: Row) -> list[str]:
    quantity = QUANTITIES[one.quantity]
    change = "" if one.percent is None else f"{one.percent:+.1f} %"
    if one.quantity == "temperature" and one.before is not None and one.after is not None:
        change = f"{one.after - one.before:+.0f} °C"
    return [
        quantity.title,
        quantity.unit,
        _value(one.before, one.before_spread),
        _value(one.after, one.after_spread),
        change,
        _JUDGED[one.judgement],
    ]


def _value(median: float | None, spread: float | None) -> str:
    if median is None or spread is None:
        return "-"
    digits = 0 if abs(median) >= 1000 else 1 if abs(median) >= 100 else 2
    return f"{median:.{digits}f} ± {spread:.{digits}f}"
