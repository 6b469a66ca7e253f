"""Shortens long texts: lists after an item, with the number of those that are left out, other texts after a word."""

from __future__ import annotations

from collections.abc import Sequence

from rigwright.core import lazy_re

LONGEST = 160
"""The length to which the two values of a change are shortened, characters."""

_MORE = lazy_re.compile(r" and (\d+) more$")
"""The end of a list that was cut before."""
_LIST = 3
"""With so many items between commas a text is a list."""


def shortened(text: str, most: int = LONGEST) -> str:
    """The text, at most about `most` characters long: cut after an item, with the number of those that are left out.

    Items are separated by commas, or by spaces in a text without commas.
    """
    if len(text) <= most:
        return text
    separator = ", " if ", " in text else " "
    items = text.split(separator)
    kept, length = 0, 0
    for item in items:
        length += len(item) + len(separator)
        if length > most:
            break
        kept += 1
    if not kept:
        return f"{text[:most]}..."
    already = _MORE.search(text)
    return f"{separator.join(items[:kept])} and {len(items) - kept + (int(already[1]) if already else 0)} more"


def first_of(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first `most` names, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{separator.join(names[:most])}{more}"


def cut(text: str, most: int) -> str:
    """The text on one line, at most about `most` characters: a list as `shortened`, other text with `...`."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    if len(line.split(", ")) >= _LIST and len(line.split(", ")[0]) < most:
        return shortened(line, most)
    begin = line[: most - 3]
    return f"{begin.rpartition(' ')[0] or begin}..."
