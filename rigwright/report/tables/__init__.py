"""Tables of one command each, for a terminal. Every module has a function that writes to a rich console."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rigwright.report.wrapping import hanging


def with_columns(*titles: str, wrap: Collection[str] = ()) -> Table:
    """An empty table with a heading for each column; only the columns of `wrap` may take several lines."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=title not in wrap, overflow="fold")
    return table


def write(console: Console, table: Table) -> None:
    """Writes a table of `with_columns`; on a terminal that is too narrow for its columns a block of lines for each row."""
    cells = [list(column.cells) for column in table.columns]
    needed = [
        _needed([column.header, *rows], column.no_wrap) + 2 for column, rows in zip(table.columns, cells, strict=True)
    ]
    if not console.is_terminal or sum(needed) - 2 <= console.width:
        console.print(table, highlight=False)
        return
    titles = [str(column.header) for column in table.columns]
    width = max(len(title) for title in titles)
    for row in zip(*cells, strict=True):
        console.print(f"[bold]{row[0]}[/]", soft_wrap=True, highlight=False)
        for title, text in zip(titles[1:], row[1:], strict=True):
            if text:
                hanging(console, f"  [dim]{title:{width}}[/]  {text}", width + 4)


def _needed(texts: Iterable[object], no_wrap: bool) -> int:
    """The columns for the longest text (rich markup), or for the longest word where a column may take several lines."""
    plain = [Text.from_markup(str(text)).plain for text in texts]
    return max(cell_len(word) for text in plain for word in ([text] if no_wrap else text.split() or [""]))


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
