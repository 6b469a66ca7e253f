"""`invoke explain`: explanations as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from rigwright.core.process.program_name import as_typed
from rigwright.features.explain.topics import Explanation
from rigwright.report.labels import as_is
from rigwright.report.tables import write_labels
from rigwright.report.wrapping import hanging


def show(console: Console, explanations: Sequence[Explanation]) -> None:
    """Writes each explanation: its title, then its lines, each with its source behind it."""
    for number, explanation in enumerate(explanations):
        if number:
            console.print()
        hanging(console, f"[bold]{as_is(explanation.title)}[/]")
        if console.is_terminal:
            rows = []
            for line in explanation.lines:
                source = f"  [dim]({as_is(line.source)})[/]" if line.source else ""
                rows.append((as_is(as_typed(line.label)), as_is(as_typed(line.text)) + source))
            write_labels(console, rows, "  ")
            continue
        labels = [as_typed(line.label) for line in explanation.lines]
        width = max(10 if any(labels) else 0, *map(len, labels))
        for label, line in zip(labels, explanation.lines, strict=True):
            source = f"  ({line.source})" if line.source else ""
            console.print(as_is(f"  {label:{width}} {as_typed(line.text)}{source}"), highlight=False, soft_wrap=True)
