"""Ranges in the names of hosts."""

from __future__ import annotations

import re

_RANGE = re.compile(r"\[(\w+):(\w+)(?::(\d+))?\]")


def expand(pattern: str) -> list[str]:
    """`node[01:03]` as node01, node02, node03; letters too; a plain name as itself. Raises ValueError for no range."""
    found = _RANGE.search(pattern)
    if not found:
        return [pattern]
    first, last, step = found.group(1), found.group(2), int(found.group(3) or 1)
    if first.isdigit() and last.isdigit():
        middle = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1, step or 1)]
    elif len(first) == len(last) == 1 and first.isalpha() and last.isalpha():
        middle = [chr(code) for code in range(ord(first), ord(last) + 1, step or 1)]
    else:
        middle = []
    if not middle or not step:
        raise ValueError(f"the range {found[0]} of '{pattern}' names no host")
    return [name for word in middle for name in expand(pattern[: found.start()] + word + pattern[found.end() :])]
