"""Tables of one command each, for a terminal. Every module has a function that writes to a rich console."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich.table import Table


def with_columns(*titles: str, wrap: Collection[str] = ()) -> Table:
    """An empty table with a heading for each column; only the columns of `wrap` may take several lines."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=title not in wrap, overflow="fold")
    return table


def with_labels(rows: Iterable[tuple[str, str]], indent: str = "") -> Table:
    """A table of labels and their texts (rich markup); a label that repeats the one above is left out."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    above = ""
    for label, text in rows:
        table.add_row(indent + (label if label != above else ""), text)
        above = label
    return table
