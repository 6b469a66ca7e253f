"""Many hosts at once: what a command does with each, and `run_hosts`, which does it with all side by side (docs/fleet.md)."""

from __future__ import annotations

from rigwright import p2p, verify
from rigwright.checks import Finding, ranked
from rigwright.crew import Act, Work, active, close, keep, prepare, run_hosts
from rigwright.facts import os as system
from rigwright.facts import p2p as peers
from rigwright.hostreport import HostReport, HostStatus

__all__ = ["Act", "HostReport", "HostStatus", "Work", "active", "close", "keep", "prepare", "run_hosts"]


def connect(one: Work) -> None:
    """The host is connected to and has said whether it is simulated."""
    one.run.transport.connect()


def look(one: Work) -> None:
    """The report holds the plan, steps that failed among it."""
    one.report.planned = one.run.planned(one.bound.steps)
    one.report.simulated = str(one.run.value(system.simulated))


def plan(one: Work) -> None:
    """The report holds the plan; its status is ok or pending. Raises the first step's error."""
    look(one)
    failed = next((step for step in one.report.planned if step.error is not None), None)
    if failed is not None and failed.error is not None:
        raise failed.error
    wanting = any(step.status in ("pending", "unknown") for step in one.report.planned)
    one.report.status = "pending" if wanting else "ok"


def apply(one: Work) -> None:
    """What the plan wanted is so and proved. Raises what stopped it."""
    if one.report.status != "pending":
        return
    outcome = one.run.apply(one.bound.steps, one.report.planned)
    one.report.outcome = outcome
    if outcome.error is not None:
        raise outcome.error
    one.report.status = "changed"


def make(one: Work, asked: p2p.Asked) -> None:
    """What the plan wanted is so and proved, tested where the driver changed, and checked. Raises what stopped it."""
    apply(one)
    test_after(one, asked)
    check(one)


def check(one: Work) -> None:
    """The report holds the findings of the checks; one that fails or is unknown makes the status failed."""
    one.report.findings = ranked(_found(one))
    if any(finding.verdict in ("fail", "unknown") for finding in one.report.findings):
        one.report.status = "failed"
    verify.remember(one.run, one.report.findings, accept=True)


def check_all(one: Work) -> None:
    """As `check`, and every step that is not so is a finding that fails: what `verify` means."""
    pending = verify.drift(one.report.planned)
    one.report.findings = ranked((*_found(one), *pending))
    bad = any(finding.verdict in ("fail", "unknown") for finding in one.report.findings)
    one.report.status = "failed" if bad else "ok"
    verify.remember(one.run, one.report.findings, accept=False)


def _found(one: Work) -> tuple[Finding, ...]:
    return (*verify.findings(one.run, one.checks), *one.report.not_tested)


def test(one: Work, asked: p2p.Asked) -> None:
    """The peer-to-peer test has run, where the playbook has a check of it; else the findings say why not."""
    if not any(active(check) for check in one.bound.checks):
        return
    refused = p2p.test(one.run, asked)
    one.report.not_tested = (refused,) if refused else ()
    one.report.p2p = None if refused else one.run.store(peers.tested)


DRIVING = ("driver.", "fabric.", "reboot.", "kernel.", "grub.")
"""Operations after which the GPUs may reach each other in another way than before."""


def test_after(one: Work, asked: p2p.Asked) -> None:
    """As `test`, where this run changed the driver or what it stands on; a run that changed nothing tests nothing."""
    done = one.report.outcome.done if one.report.outcome else {}
    changed = {step.operation for step in one.bound.steps if step.key in done}
    if any(operation.startswith(DRIVING) for operation in changed):
        test(one, asked)
