"""Expands ranges in host names, and combines consecutive names into ranges."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from rigwright.core import lazy_re

_RANGE = lazy_re.compile(r"\[(\w*):(\w+)(?::(\d+))?\]")
_MOST = 100_000


def expand(pattern: str) -> list[str]:
    """The names of `node[01:03]`: node01, node02, node03. A range can be of letters, and have a step: `[a:g:2]`.

    Raises ValueError for an invalid or empty range, and for more than 100000 hosts.
    """
    match = _RANGE.search(pattern)
    if not match:
        if "[" in pattern or "]" in pattern:
            raise ValueError(f"'{pattern}' has brackets without a range")
        return [pattern]
    middle = _between(match[1] or "0", match[2], int(match[3] or 1))
    if not middle:
        raise ValueError(f"the range {match[0]} of '{pattern}' names no host")
    rest = expand(pattern[match.end() :])
    if len(middle) * len(rest) > _MOST:
        raise ValueError(f"'{pattern}' stands for more than {_MOST} hosts")
    return [pattern[: match.start()] + word + end for word in middle for end in rest]


def _between(first: str, last: str, step: int) -> list[str]:
    """Every step-th number or letter from `first` to `last`; [] for an invalid range, also of leading zeros."""
    letters = string.ascii_letters
    if not step:
        return []
    if first.isdecimal() and last.isdecimal():
        padded = len(first) > 1 and first.startswith("0")
        if (padded and len(first) != len(last)) or int(last) - int(first) > _MOST:
            return []
        width = len(first) if padded else 0
        return [str(number).zfill(width) for number in range(int(first), int(last) + 1, step)]
    if len(first) == len(last) == 1 and first in letters and last in letters:
        return list(letters[letters.index(first) : letters.index(last) + 1 : step])
    return []


def folded(names: Iterable[str]) -> str:
    """The names in natural order; three or more consecutive names become a range: `a1, gpu[01:04]`."""
    runs: list[list[str]] = []
    for name in sorted(names, key=_natural_order):
        if runs and _after(runs[-1][-1]) == name:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(_range(run) if len(run) > 2 else ", ".join(run) for run in runs)


def _natural_order(name: str) -> list[tuple[int, str]]:
    """The sort key that puts gpu9 before gpu10."""
    return [(int(word), word) if word.isdecimal() else (-1, word) for word in re.split(r"([0-9]{1,9})", name)]


_NUMBERED = lazy_re.compile(r"(.*?)([0-9]{1,9})([^0-9]*)", re.DOTALL)


def _after(name: str) -> str | None:
    """The name with its last number increased by one; None without a number, and for 09, which has no next one."""
    match = _NUMBERED.fullmatch(name)
    word = str(int(match[2]) + 1).zfill(len(match[2])) if match else ""
    if not match or (match[2].startswith("0") and len(word) > len(match[2])):
        return None
    return match[1] + word + match[3]


def _range(run: list[str]) -> str:
    before, first, after = _NUMBERED.fullmatch(run[0]).groups()  # type: ignore[union-attr]
    last = run[-1][len(before) : len(run[-1]) - len(after)]
    return f"{before}[{first}:{last}]{after}"
