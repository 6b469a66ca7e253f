"""Words, signs and formats that all forms of a report share."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rigwright.checks import VERDICTS
from rigwright.checks.problems import required_in_words
from rigwright.core import lazy_re
from rigwright.core.control_characters import harmless
from rigwright.core.numbers import count

if TYPE_CHECKING:
    from rigwright.engine.report import HostReport

FOLDED = 4
"""Up to this many failed steps of a host's plan are single findings; more are one entry."""

SOURCES = {
    "rig": "by the rig",
    "inventory": "by the inventory",
    "catalogue": "by the catalogue",
    "host": "by the host itself",
    "peers": "by its peers",
    "past": "by its past",
}
"""By the source of a finding."""


WORDS = {"fail": "failed", "unknown": "unknown", "warn": "warning", "info": "information", "pass": "passed"}
WEIGHTS = {"fail": "serious flaw", "unknown": "not examined", "warn": "minor flaw"}
"""The weight of a problem on an acceptance sheet."""
SIGNS = {"fail": "✗", "unknown": "?", "warn": "!", "info": "i", "pass": "✓"}


def as_is(text: str) -> str:
    """Text of a host or a file for rich's markup: brackets escaped, control characters replaced, long lines cut."""
    shown = [""]
    shorter = _MANY_BACKSLASHES.sub(lambda match: f"({len(match[0])} backslashes)", harmless(text))
    for at, part in enumerate(shorter.split("[")):
        if at and part[:1] in _TAG and "]" in part:  # rich would take it for a tag: a backslash more makes it text
            shown.append(_backslashes(shown[-1]) + "\\[")
        elif at:
            shown.append("\\[" if shown[-1].endswith("\\") else "[")
        shown.append(part)
    return "".join(shown) + _backslashes(shown[-1])


_TAG = frozenset("abcdefghijklmnopqrstuvwxyz#/@")
_MANY_BACKSLASHES = lazy_re.compile(r"\\{64,}")


def _backslashes(text: str) -> str:
    """The backslashes at the end of a text once more: rich shows half of those before a tag."""
    return "\\" * (len(text) - len(text.rstrip("\\")))


def count_bad(counts: Mapping[str, int]) -> str:
    """`1 failed, 2 unknown, 3 warnings`; "" when there are none."""
    words = {**WORDS, "warn": "warning" if counts.get("warn") == 1 else "warnings"}
    return ", ".join(f"{counts[verdict]} {words[verdict]}" for verdict in VERDICTS[:3] if counts.get(verdict))


def checks_in_words(report: HostReport) -> str:
    """`34 checks hold, 1 failed, 2 could not be answered, 1 test is required`, without parts that are 0."""
    words = [f"{count(report.passed, 'check')} {'holds' if report.passed == 1 else 'hold'}"]
    words += [f"{report.failed} failed"] if report.failed else []
    words += [f"{report.unanswered} could not be answered"] if report.unanswered else []
    words += [required_in_words(len(report.required_tests))] if report.required_tests else []
    return ", ".join(words)


def local_time(at: datetime.datetime) -> str:
    """A time in this machine's time zone, to the minute: `2026-11-21 10:15`."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M")
