"""The owner's decisions: warnings that the variable `accepted` of the inventory accepts until a date."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from rigwright.checks import Finding, declared
from rigwright.checks.problems import DRIFT
from rigwright.core.desired import Acceptance

REQUIRED_TEST = "p2p.ran"
"""The check whose warning says that a test is required. It cannot be accepted."""


def acceptable(finding: Finding) -> bool:
    """Whether it is a warning that the inventory can accept by the name of its check."""
    known = declared(finding.check) is not None or finding.check in DRIFT
    return finding.verdict == "warn" and known and finding.check != REQUIRED_TEST


def with_decisions(
    findings: Iterable[Finding], accepted: Mapping[str, Acceptance] | None, today: datetime.date | None = None
) -> tuple[Finding, ...]:
    """The findings; an accepted warning is an information. A finding that counts although its name is accepted says
    why. `accepted`: by the name of a check or a symptom."""
    day = today or datetime.date.today()
    return tuple(_with_decision(finding, accepted, day) if accepted else finding for finding in findings)


def _with_decision(finding: Finding, accepted: Mapping[str, Acceptance], today: datetime.date) -> Finding:
    decision = accepted.get(finding.symptom) or accepted.get(finding.check)
    if decision is None or finding.verdict in ("pass", "info") or finding.check == REQUIRED_TEST:
        return finding
    if decision.only and not {*decision.only} & {*finding.subject.replace(",", " ").split()}:
        return finding
    if finding.verdict != "warn":
        return replace(finding, accepted="only its warnings are accepted; this one counts")
    if decision.until < today:
        return replace(finding, accepted=f"ended on {decision.until}, the warning counts again")
    return replace(finding, verdict="info", accepted=f"until {decision.until}, because {decision.because}")
