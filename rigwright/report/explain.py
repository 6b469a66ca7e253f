"""What the catalogue knows, as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rigwright.explain import Explanation


def show(console: Console, found: Sequence[Explanation]) -> None:
    """Every explanation: a title, then a line for each thing that is known, its source dim behind it."""
    for number, one in enumerate(found):
        if number:
            console.print()
        console.print(f"[bold]{escape(one.title)}[/]", highlight=False)
        if not console.is_terminal:
            for line in one.lines:
                source = f"  ({line.source})" if line.source else ""
                print(f"  {line.label:10} {line.text}{source}", file=console.file)
            continue
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        above = ""
        for line in one.lines:
            source = f"  [dim]({escape(line.source)})[/]" if line.source else ""
            table.add_row("  " + (line.label if line.label != above else ""), escape(line.text) + source)
            above = line.label
        console.print(table, highlight=False)
