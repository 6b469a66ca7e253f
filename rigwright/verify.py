"""Verify: the plan must be empty, and every check must pass."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rigwright import remembered
from rigwright.checks import Finding, machine, unknown
from rigwright.checks.health import loaded_c as loaded
from rigwright.errors import HostError
from rigwright.facts import Fact, Missing, Unavailable, Unreadable, card
from rigwright.hostrun import HostRun
from rigwright.plan import MAX_ROUNDS, Planned
from rigwright.playbook import Check


def findings(run: HostRun, checks: Sequence[Check]) -> tuple[Finding, ...]:
    """What the checks found; one that the host cannot answer now is `unknown`, with the reason."""
    for _ in range(MAX_ROUNDS + 1):
        found, missing = _asked(run, checks)
        if not missing:
            return tuple(found)
        run.read(missing)
    raise RuntimeError("checks whose facts never settle")


def wanted(run: HostRun, checks: Sequence[Check]) -> tuple[Fact[Any], ...]:
    """The facts that the checks ask for next, so that they can be read together with others."""
    return _asked(run, checks)[1]


def _asked(run: HostRun, checks: Sequence[Check]) -> tuple[list[Finding], tuple[Fact[Any], ...]]:
    """What the checks find in what is known, and the facts that are missing for the rest."""
    found: list[Finding] = []
    missing: dict[Fact[Any], None] = {}
    for check in checks:
        try:
            found += list(check.function(run.store, **check.parameters, **_remembered(run, check)))
        except Missing as asked:
            missing.update(dict.fromkeys(asked.facts))
        except (Unavailable, Unreadable, HostError) as reason:
            found.append(unknown(check.check, check.name, str(reason).splitlines()[0]))
    return found, tuple(missing)


def _remembered(run: HostRun, check: Check) -> dict[str, Any]:
    """What a check wants to know of the host's last run, where it does."""
    wants = "earlier" in inspect.signature(check.function).parameters
    return {"earlier": remembered.last(run.name, run.address)} if wants else {}


def remember(run: HostRun, findings: Sequence[Finding], *, accept: bool) -> None:
    """What the checks saw of the machine is what the next run compares with; a machine that has lost something is remembered
    only with `accept`, or it would be told once and never again."""
    if any(one.check == machine.UNCHANGED and one.verdict == "fail" for one in findings) and not accept:
        return
    try:
        here = machine.now(run.store)
    except (Missing, Unavailable, Unreadable):
        return  # no check asked, or the host did not say
    before = remembered.last(run.name, run.address)
    samples = run.store.known.get(card.cards)
    hot = any(one.symptom == "thermal.one_hotter" for one in findings)
    loaded_c = loaded(samples) if isinstance(samples, tuple) and not hot else {}
    past = dict((before.loaded_c if before else None) or {})
    remembered.remember(run.name, run.address, replace(here, loaded_c={**past, **loaded_c}))


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
