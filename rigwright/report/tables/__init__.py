"""Tables of one command each, for a terminal. Every module has a function that writes to a rich console."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

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
    """Writes a table; on a terminal without empty columns, and as a block for each row if it is too wide."""
    if console.is_terminal:
        first, *others = table.columns
        table.columns = [first, *(one for one in others if any(str(cell) not in ("", "-") for cell in one.cells))]
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
    plain = [Text.from_markup(str(text), emoji=False).plain for text in texts]
    return max(cell_len(word) for text in plain for word in ([text] if no_wrap else text.split() or [""]))


def _cells(markup: str) -> int:
    return Text.from_markup(markup, emoji=False).cell_len


def write_labels(console: Console, rows: Sequence[tuple[str, str]], indent: str = "") -> None:
    """Writes labels and texts (rich markup) in two columns, without a label that repeats the one above."""
    width = max((_cells(label) for label, _ in rows), default=0)
    hang = len(indent) + width + 2
    if console.is_terminal and hang > console.width // 2:
        hang = len(indent) + 4
    above = ""
    for label, text in rows:
        shown = label if label != above else ""
        hanging(console, f"{indent}[dim]{shown}{' ' * (width - _cells(shown))}[/]  {text}", hang)
        above = label
