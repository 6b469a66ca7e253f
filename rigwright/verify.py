"""Verify: the plan must be empty, and every check must pass."""

from __future__ import annotations

from collections.abc import Sequence

from rigwright.apply import HostRun
from rigwright.checks import Finding, unknown
from rigwright.errors import HostError
from rigwright.facts import Missing, Unavailable, Unreadable
from rigwright.plan import MAX_ROUNDS, Planned
from rigwright.playbook import Check


def findings(run: HostRun, checks: Sequence[Check]) -> tuple[Finding, ...]:
    """What the checks found; one that the host cannot answer now is `unknown`, with the reason."""
    for _ in range(MAX_ROUNDS + 1):
        found: list[Finding] = []
        missing: dict[object, None] = {}
        for check in checks:
            try:
                found += list(check.function(run.store, **check.parameters))
            except Missing as wanted:
                missing.update(dict.fromkeys(wanted.facts))
            except (Unavailable, Unreadable, HostError) as reason:
                found.append(unknown(check.check, check.name, str(reason).splitlines()[0]))
        if not missing:
            return tuple(found)
        run.read(tuple(missing))  # type: ignore[arg-type]
    raise RuntimeError("checks whose facts never settle")


def drift(planned: Sequence[Planned]) -> tuple[Finding, ...]:
    """Every step that is not so, as a finding that failed."""
    found: list[Finding] = []
    for one in planned:
        for change in one.changes:
            found.append(
                Finding(
                    "plan",
                    f"{one.step.name}: {change.subject}",
                    "fail",
                    change.before or "not there",
                    change.after,
                    "",
                    "invoke provision",
                    "inventory",
                )
            )
        if one.status in ("unknown", "failed"):
            found.append(unknown("plan", one.step.name, one.reason))
    return tuple(found)
