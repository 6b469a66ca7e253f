"""Text for a terminal of any width: lines that hang under their beginning, of which no word is cut."""

from __future__ import annotations

import re
import shutil
import textwrap
from typing import IO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_NARROWEST = 16
"""Columns beside an indentation; with fewer the text is not wrapped."""
_STEP = 4
"""The default indentation of the rest of a line, in columns after the indentation of its beginning."""


def hanging(console: Console, text: str, indent: int | None = None) -> None:
    """Prints lines of rich markup; on a terminal the rest of a long line follows `indent` columns from the left.

    It breaks between words only. A word that is longer than the line stays whole, so that it can be copied.
    """
    for line in Text.from_markup(text, emoji=False).split("\n", allow_blank=True):
        _hanging(console, line, indent)


def _hanging(console: Console, line: Text, indent: int | None) -> None:
    if not console.is_terminal:
        console.print(line, soft_wrap=True)
        return
    if indent is None:
        indent = len(line.plain) - len(line.plain.lstrip()) + _STEP
    room = console.width - indent
    if room < _NARROWEST or line.cell_len <= console.width:
        console.print(line, soft_wrap=True)
        return
    for number, part in enumerate(line.divide(_breaks(line.plain, indent, room))):
        part.rstrip()
        console.print(part if number == 0 else Text(" " * indent) + part, soft_wrap=True)


def _breaks(line: str, indent: int, room: int) -> list[int]:
    """The beginnings of the lines after the first: at words, with at most `room` columns after the indentation."""
    begin, breaks = indent, []
    for word in re.finditer(r"\S+", line):
        if word.start() > begin and cell_len(line[begin : word.end()]) > room:
            begin = word.start()
            breaks.append(begin)
    return breaks


def message(text: str, stream: IO[str]) -> str:
    """An error's message for a stream: on a terminal its lines are wrapped beside `expected:` and `fix:`."""
    if not stream.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    lines = []
    for number, line in enumerate(text.splitlines()):
        lines += wrapped(line, columns, 6 if number == 0 else 12)
    return "\n".join(lines)


def wrapped(line: str, columns: int, indent: int) -> list[str]:
    """The lines of a plain line, each after its first `indent` columns further right; it breaks between words only."""
    if columns - indent < _NARROWEST:
        return [line]
    begin = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.strip(),
        columns,
        initial_indent=begin,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]
