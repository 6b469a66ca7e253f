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
        _show_comparison(console, tried, tried.comparison, tried.before, tried.after)
    elif tried.before is not None:
        _show_measurement(console, tried.before)
    if tried.failure:
        hanging(console, f"[bold red]failed[/]: {as_is(tried.failure)}", 4)


def _show_measurement(console: Console, measured: Measurement) -> None:
    rows = [_test_cells(measured)]
    for name in QUANTITIES:
        if name in measured.rounds:
            quantity = row(name, measured.rounds[name], ())
            rows.append(
                [QUANTITIES[name].title, QUANTITIES[name].unit, _value(quantity.before, quantity.before_spread)]
            )
    _write(console, ("measured", "unit", "value"), rows)
    for part, why in measured.missing.items():
        hanging(console, f"[yellow]not measured[/]: {as_is(part)}: {as_is(why)}", 4)
    for name, outcome in list(measured.failures.items())[:_SHOWN]:
        hanging(console, f"[bold red]{as_is(outcome)}[/]: {as_is(name)}", 4)
    write_labels(console, [(name, as_is(text)) for name, text in measured.conditions.items()], "  ")


def _write(console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes the rows as a table of up to 80 columns; the third to the fifth column are right-aligned."""
    table = with_columns(*titles)
    widths = [max(len(row[at]) for row in rows) for at in range(len(titles))]
    for cells in rows:
        table.add_row(*(cell.rjust(widths[at]) if 2 <= at <= 4 else cell for at, cell in enumerate(cells)))
    write(console, table)


def _test_cells(*measured: Measurement) -> list[str]:
    return ["peer-to-peer test", "passed", *(f"{one.passed} of {one.passed + len(one.failures)}" for one in measured)]


def _show_comparison(
    console: Console, tried: Attempt, comparison: Comparison, before: Measurement, after: Measurement
) -> None:
    fails, repaired = set(after.failures) - set(before.failures), set(before.failures) - set(after.failures)
    outcome = "[bold red]fails[/]" if fails else "[bold green]better[/]" if repaired else "[dim]same[/]"
    rows = [[*_test_cells(before, after), "", outcome]]
    # The history may have quantities of another version.
    rows += [_cells(each) for each in comparison.rows if each.quantity in QUANTITIES]
    _write(console, ("measured", "unit", "before", "after", "change", ""), rows)
    rounds = max((len(values) for values in (*before.rounds.values(), *after.rounds.values())), default=0)
    noise = f"Medians of {count(rounds, 'round')} ± half of their range. Noise: the ranges overlap, or the medians"
    hanging(console, f"[dim]{noise} are within {LEAST_PERCENT:g} %.[/]", 0)
    if before.transport != after.transport:
        was, now = as_is(before.transport or "?"), as_is(after.transport or "?")
        hanging(console, f"NCCL connects the GPUs by {now} in place of {was}", 4)
    for label, texts in (("[bold red]fails", comparison.broken), ("[bold green]repaired", comparison.repaired)):
        for text in texts[:_SHOWN]:
            hanging(console, f"{label}[/]: {as_is(text)}", 4)
        if len(texts) > _SHOWN:
            hanging(console, f"  and {len(texts) - _SHOWN} more")
    _warn_of_temperatures(console, comparison)
    _show_conditions(console, tried, comparison)
    hanging(console, f"[{_COLOURS[comparison.verdict]}]{WORDS[comparison.verdict]}[/]", 4)


def _warn_of_temperatures(console: Console, comparison: Comparison) -> None:
    """Warns where a speed differs and the GPUs had another temperature, which changes their clocks by itself."""
    if not any(each.judgement in ("better", "worse") for each in comparison.rows):
        return
    for each in comparison.rows:
        degrees = _degrees(each)
        if degrees is not None and abs(degrees) >= WARMER_IN_TRIAL_C:
            word = "warmer" if degrees > 0 else "cooler"
            text = f"The hottest GPU was {abs(degrees):.0f} °C {word} after. A warmer GPU may run at lower clocks,"
            text += " by the change or before it had warmed up: measure again with --again."
            hanging(console, f"[yellow]![/] {text}", 4)


def _degrees(row: Row) -> float | None:
    """The change of the temperature, °C; None for another quantity, or where it was not measured."""
    measured = row.quantity == "temperature" and row.before is not None and row.after is not None
    return row.after - row.before if measured else None  # type: ignore[operator]


def _show_conditions(console: Console, tried: Attempt, comparison: Comparison) -> None:
    """Writes which conditions differ, and warns if none or several do: then the cause of a difference is unknown."""
    if not comparison.differs:
        note = f" ({tried.note})" if tried.note else ""
        hanging(console, f"[yellow]![/] Nothing that can be read here differs in force{as_is(note)}.", 4)
        return
    hanging(console, "[dim]In force:[/]")
    changes = [(each.name, as_is(each.before or "none"), as_is(each.after or "none")) for each in comparison.differs]
    write_labels(console, [(name, f"{before} [dim]->[/] {after}") for name, before, after in changes], "  ")
    if len(changes) > 1:
        names, by = ", ".join(each.name for each in comparison.differs), tried.change or tried.note or "the change"
        text = f"{len(changes)} things differ ({names}): the measurement does not tell them apart from {by}."
        hanging(console, f"[yellow]![/] {as_is(text)}", 4)


def _cells(row: Row) -> list[str]:
    quantity, degrees = QUANTITIES[row.quantity], _degrees(row)
    change = "" if row.percent is None else f"{row.percent:+.1f} %"
    if degrees is not None:
        change = f"{degrees:+.0f} °C"
    before, after = _value(row.before, row.before_spread), _value(row.after, row.after_spread)
    return [quantity.title, quantity.unit, before, after, change, _JUDGED[row.judgement]]


def _value(median: float | None, spread: float | None) -> str:
    if median is None or spread is None:
        return "-"
    digits = 0 if abs(median) >= 1000 else 1 if abs(median) >= 100 else 2
    return f"{median:.{digits}f} ± {spread:.{digits}f}"
