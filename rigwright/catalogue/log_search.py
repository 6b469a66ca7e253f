"""Finds the catalogue's symptoms and Xids in a log that comes in parts, with bounded time and memory.

A regular expression is tried only on parts that contain a text without which it cannot match.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rigwright import catalogue
from rigwright.catalogue.symptoms import Symptom

LEAST_TEXT = 3
"""The shortest text that decides whether a pattern is tried."""
_OVERLAP_LINES = 20
_MOST_XIDS = 64
_FLAGS = re.IGNORECASE | re.MULTILINE
_XID_LINE = re.compile(r"(?<![A-Za-z])Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,3})\b")


@dataclass(frozen=True)
class Hit:
    """Where something was first found: the number of its line, the line, and how often (symptoms: 1)."""

    line: int
    text: str
    count: int = 1


@dataclass
class _Pattern:
    symptom: Symptom
    expression: str
    texts: tuple[str, ...]


class LogSearch:
    """The symptoms and Xids that were found so far, in the order in which they were found.

    `symptoms`: by key; only the first match of each. `xids`: by bus id and code; SXids of NVSwitches are left out.
    """

    def __init__(self) -> None:
        self.symptoms: dict[str, Hit] = {}
        self.xids: dict[tuple[str, int], Hit] = {}
        self._left = [
            _Pattern(symptom, expression, required_texts(expression))
            for symptom in catalogue.symptoms().values()
            for expression in symptom.patterns
        ]
        self._above: list[tuple[int, str]] = []

    def feed(self, lines: Sequence[tuple[int, str]]) -> None:
        """Searches lines with their numbers. A match may begin in the last twenty lines of the part before."""
        both = [*self._above, *lines]
        text = "\n".join(line for _, line in both)
        low = text.lower()
        ends = list(accumulate(len(line) + 1 for _, line in both))
        for pattern in self._left:
            if pattern.symptom.key in self.symptoms or not _may_match(pattern, low):
                continue
            match = re.search(pattern.expression, text, _FLAGS)
            if match:
                self.symptoms[pattern.symptom.key] = Hit(*both[bisect_right(ends, match.start())])
        self._left = [pattern for pattern in self._left if pattern.symptom.key not in self.symptoms]
        self._above = both[-_OVERLAP_LINES:]

    def count_xid(self, number: int, line: str) -> None:
        """Counts the Xid in a line of the log, if it has one."""
        match = _XID_LINE.search(line)
        if match is None:
            return
        key = (match[1].lower(), int(match[2]))
        known = self.xids.get(key)
        if known:
            self.xids[key] = Hit(known.line, known.text, known.count + 1)
        elif len(self.xids) < _MOST_XIDS:
            self.xids[key] = Hit(number, line)


def _may_match(pattern: _Pattern, low: str) -> bool:
    return not pattern.texts or any(text in low for text in pattern.texts)


def required_texts(expression: str) -> tuple[str, ...]:
    """Texts in lower case of which every match of a regular expression contains at least one.

    Returns () if the expression has none of LEAST_TEXT characters or more. Of all choices it takes the one whose
    shortest text is longest.
    """
    found: list[str] = []
    for branch in _branches(expression):
        choice = max(_choices(branch), key=lambda texts: min(map(len, texts)), default=())
        if not choice or min(map(len, choice)) < LEAST_TEXT:
            return ()
        found += choice
    return tuple(dict.fromkeys(found))


_GROUP_START = re.compile(r"\((?:\?(?::|P<\w+>))?")


def _choices(branch: str) -> Iterable[tuple[str, ...]]:
    """For every part of an expression without top-level alternatives that a match must have: the texts that it can be."""
    run, at = "", 0
    while at < len(branch):
        char, width, is_text, inner = branch[at], 1, False, None
        if char == "\\" and at + 1 < len(branch):
            char, width = branch[at + 1], 2
            is_text = not char.isalnum()
        elif char == "[":
            width = _end_of_class(branch, at) - at
        elif char == "(":
            width = _end_of_group(branch, at) - at
            start = _GROUP_START.match(branch, at)
            if start and branch[start.end() : start.end() + 1] != "?":
                inner = branch[start.end() : at + width - 1]
        else:
            is_text = char not in ".^$"
        at += width
        least, width = _repetition(branch, at)
        at += width
        if is_text and least and char.isascii():
            run += char.lower()
        if not is_text or width or not char.isascii():
            if run:
                yield (run,)
            run = ""
        if inner is not None and least and (texts := required_texts(inner)):
            yield texts
    if run:
        yield (run,)


def _repetition(branch: str, at: int) -> tuple[int, int]:
    """The least number of repetitions after a part of an expression (0 or 1), and the length of the sign for it."""
    sign = re.compile(r"(?:[?*+]|\{(\d*),?\d*\})[?+]?").match(branch, at)
    if not sign:
        return 1, 0
    none = sign[0][0] in "?*" or (sign[0][0] == "{" and sign[1] in ("", "0"))
    return 0 if none else 1, len(sign[0])


def _branches(expression: str) -> list[str]:
    """The alternatives of an expression that `|` separates outside of groups and classes."""
    found, start, at = [], 0, 0
    while at < len(expression):
        if expression[at] == "|":
            found.append(expression[start:at])
            start = at + 1
        at = _next(expression, at)
    return [*found, expression[start:]]


def _next(expression: str, at: int) -> int:
    """The position after an escaped character, a class, a group or a character."""
    if expression[at] == "\\":
        return at + 2
    if expression[at] == "[":
        return _end_of_class(expression, at)
    return _end_of_group(expression, at) if expression[at] == "(" else at + 1


def _end_of_class(expression: str, at: int) -> int:
    at += 2 if expression[at + 1 : at + 2] == "^" else 1
    at += expression[at : at + 1] == "]"
    while at < len(expression) and expression[at] != "]":
        at += 2 if expression[at] == "\\" else 1
    return at + 1


def _end_of_group(expression: str, at: int) -> int:
    at += 1
    while at < len(expression) and expression[at] != ")":
        at = _next(expression, at)
    return at + 1
