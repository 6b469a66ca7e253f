"""Checks: pure functions from facts to findings. They look; they change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "info", "warn", "fail", "unknown"]
Source = Literal["", "rig", "inventory", "catalogue", "host", "peers", "past"]
"""Where the wanted came from: the machine's rig, the inventory, the catalogue's word on a model, another place of the same
host (the port above a GPU, the other three version numbers), the GPUs beside it, or what the host was in its last run."""

GIVEN = ("facts", "earlier")
"""Parameters of a check that verify gives, not a playbook: what the host says, and what was remembered of its last run."""

AGAIN = "mend what is named above, then again"
"""The fix of what could not be judged because something else was wrong."""

_ORDER: tuple[Verdict, ...] = ("fail", "unknown", "warn", "info", "pass")


@dataclass(frozen=True)
class Finding:
    """What a check saw of one thing, what was wanted and by whom, and the line to type or the screw to turn.

    `cause` names the likeliest first. `symptom` is the catalogue's key for it, "" where the catalogue has none.
    """

    check: str
    subject: str
    verdict: Verdict
    seen: str
    wanted: str = ""
    cause: str = ""
    fix: str = ""
    source: Source = ""
    symptom: str = ""


def of_symptom(
    key: str,
    check: str,
    subject: str,
    seen: str,
    wanted: str = "",
    source: Source = "",
    *,
    verdict: Verdict | None = None,
    fix: str = "",
    names: Mapping[str, str] | None = None,
) -> Finding:
    """A finding whose verdict, cause and fix are those of a symptom of the catalogue.

    `names` fills what the fix calls by a word in capitals: {"INDEX": "2"}; `fix` takes its place, where rigwright does it.
    """
    from rigwright import catalogue

    known = catalogue.symptoms()[key]
    fix = fix or known.fix
    for word, value in (names or {}).items():
        fix = fix.replace(word, value)
    return Finding(check, subject, verdict or known.level, seen, wanted, known.cause, fix, source, key)


def unknown(check: str, subject: str, reason: str) -> Finding:
    """What the host cannot answer now; where the catalogue knows the words of its reason, with their cause and fix."""
    from rigwright import catalogue

    known = next(iter(catalogue.symptoms_in(reason)), None)
    if known is None:
        return Finding(check, subject, "unknown", reason, fix="invoke provision")
    return of_symptom(known.key, check, subject, reason, verdict="unknown")


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Root causes first: what failed, what could not be judged, warnings, information, passes; of each the order of the
    checks, in which a playbook names what others rest on first."""
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.verdict)))
