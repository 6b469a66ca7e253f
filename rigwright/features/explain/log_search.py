"""Finds the catalogue's symptoms and Xids in a log that comes in parts, with bounded time and memory."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue.symptoms import Cause, literal
from rigwright.core import lazy_re

_OVERLAP_LINES = 20
_MOST_XIDS = 64
_SEARCHED_FOR_XIDS = 1000
"""Characters of a line in which Xids that it names are searched."""
_ONLY_WITH = "only with"
_FLAGS = re.IGNORECASE | re.MULTILINE
_XID_LINE = lazy_re.compile(r"(?<![A-Za-z])Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,3})\b")


class Hit(Struct, frozen=True):
    """The number and the text of the first line with a symptom or Xid, the number of lines (symptoms: 1), and the
    number of the last line of that first match."""

    line: int
    text: str
    count: int = 1
    last: int = 0


class _Pattern(Struct, frozen=True):
    """A pattern of a symptom: of the symptom itself, of a possible cause, or one of its `only_with`."""

    key: str
    expression: str
    role: Cause | str = ""


class LogSearch:
    """The symptoms and Xids so far, in the order in which they were found.

    `causes`: the possible causes that the log shows. `xids`: by bus id ("" if the line names none) and code, without
    the SXids of NVSwitches.
    """

    def __init__(self) -> None:
        self.causes: set[Cause] = set()
        self.xids: dict[tuple[str, int], Hit] = {}
        self._hits: dict[tuple[str, Cause | str], Hit] = {}
        self._unmatched: list[_Pattern] = []
        for key, symptom in catalogue.all_symptoms().items():
            self._unmatched += [_Pattern(key, expression) for expression in symptom.patterns]
            self._unmatched += [_Pattern(key, expression, _ONLY_WITH) for expression in symptom.only_with]
            self._unmatched += [_Pattern(key, shown, cause) for cause in symptom.causes for shown in cause.shown_by]
        self._above: list[tuple[int, str]] = []

    @property
    def symptoms(self) -> Mapping[str, Hit]:
        """By key, the first match of each symptom that the log shows."""
        known = catalogue.all_symptoms()
        return {
            key: hit
            for (key, role), hit in self._hits.items()
            if role == "" and (not known[key].only_with or (key, _ONLY_WITH) in self._hits)
        }

    def feed(self, lines: Sequence[tuple[int, str]]) -> None:
        """Searches lines with their numbers. A match may begin in the last twenty lines of the part before."""
        both = [*self._above, *lines]
        text = "\n".join(line for _, line in both)
        low = text.lower()
        ends = list(accumulate(len(line) + 1 for _, line in both))
        starts: dict[tuple[str, Cause | str], int] = {}
        for pattern in self._unmatched:
            if literal(pattern.expression) not in low:
                continue
            place = (pattern.key, pattern.role)
            if match := re.search(pattern.expression, text, _FLAGS):
                if starts.setdefault(place, match.start()) < match.start():
                    continue  # another pattern of the symptom matches before it
                starts[place] = match.start()
                first, last = (
                    both[bisect_right(ends, at)] for at in (match.start(), max(match.start(), match.end() - 1))
                )
                self._hits[place] = Hit(*first, last=last[0])
                if isinstance(pattern.role, Cause):
                    self.causes.add(pattern.role)
        self._unmatched = [pattern for pattern in self._unmatched if (pattern.key, pattern.role) not in self._hits]
        self._above = both[-_OVERLAP_LINES:]

    def count_xid(self, number: int, line: str) -> None:
        """Counts the Xid of a line of the log, and the Xids that a line names (`caused by previous Xid 149`)."""
        match = _XID_LINE.search(line)
        at, code = (match[1].lower(), int(match[2])) if match else ("", None)
        several = not match or line.lower().count("xid") > 1
        named = catalogue.xids_in(line[:_SEARCHED_FOR_XIDS]) if several else ()
        others = [other for other in named if other != code and other in catalogue.xids()]
        for key in [(at, each) for each in (code, *others) if each is not None]:
            if hit := self.xids.get(key):
                self.xids[key] = replace(hit, count=hit.count + 1)
            elif len(self.xids) < _MOST_XIDS:
                self.xids[key] = Hit(number, line)
