"""Finds the catalogue's symptoms and Xids in a log that comes in parts, with bounded time and memory."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue.symptoms import Cause, literal
from rigwright.core import lazy_re

_OVERLAP_LINES = 20
_MOST_XIDS = 64
_FLAGS = re.IGNORECASE | re.MULTILINE
_XID_LINE = lazy_re.compile(r"(?<![A-Za-z])Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,3})\b")


class Hit(Struct, frozen=True):
    """The number and the text of the first line with a symptom or Xid, and the number of lines (symptoms: 1)."""

    line: int
    text: str
    count: int = 1


class _Pattern(Struct, frozen=True):
    """A pattern of a symptom, or of one of its possible causes."""

    key: str
    expression: str
    cause: Cause | None = None


class LogSearch:
    """The symptoms and Xids so far, in the order in which they were found.

    `symptoms`: by key, the first match. `causes`: the possible causes that the log shows. `xids`: by bus id and code,
    without the SXids of NVSwitches.
    """

    def __init__(self) -> None:
        self.symptoms: dict[str, Hit] = {}
        self.causes: set[Cause] = set()
        self.xids: dict[tuple[str, int], Hit] = {}
        known = catalogue.all_symptoms().items()
        causes = ((key, cause) for key, symptom in known for cause in symptom.causes)
        self._unmatched = [
            *(_Pattern(key, expression) for key, symptom in known for expression in symptom.patterns),
            *(_Pattern(key, expression, cause) for key, cause in causes for expression in cause.shown_by),
        ]
        self._above: list[tuple[int, str]] = []

    def feed(self, lines: Sequence[tuple[int, str]]) -> None:
        """Searches lines with their numbers. A match may begin in the last twenty lines of the part before."""
        both = [*self._above, *lines]
        text = "\n".join(line for _, line in both)
        low = text.lower()
        ends = list(accumulate(len(line) + 1 for _, line in both))
        for pattern in self._unmatched:
            if self._has(pattern) or literal(pattern.expression) not in low:
                continue
            if match := re.search(pattern.expression, text, _FLAGS):
                if pattern.cause:
                    self.causes.add(pattern.cause)
                else:
                    self.symptoms[pattern.key] = Hit(*both[bisect_right(ends, match.start())])
        self._unmatched = [pattern for pattern in self._unmatched if not self._has(pattern)]
        self._above = both[-_OVERLAP_LINES:]

    def _has(self, pattern: _Pattern) -> bool:
        return pattern.cause in self.causes if pattern.cause else pattern.key in self.symptoms

    def count_xid(self, number: int, line: str) -> None:
        """Counts the Xid in a line of the log, if it has one."""
        if match := _XID_LINE.search(line):
            key = (match[1].lower(), int(match[2]))
            if hit := self.xids.get(key):
                self.xids[key] = replace(hit, count=hit.count + 1)
            elif len(self.xids) < _MOST_XIDS:
                self.xids[key] = Hit(number, line)
