"""Merges the results of stages into the report of a host: results kept after an error, and the status."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from rigwright.checks import Finding
from rigwright.core.change import Change
from rigwright.core.command import Result
from rigwright.core.desired import Acceptance, Desired
from rigwright.core.errors import HostError, RigwrightError, Unreachable
from rigwright.core.host_result import HostResult
from rigwright.engine.host_run import HostRun
from rigwright.engine.machine import MachineResult
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import Step
from rigwright.engine.report import (
    ApplyResult,
    CheckResult,
    HostReport,
    PlanResult,
)
from rigwright.features.fleet_run.result import CommandResult
from rigwright.fleet import actions
from rigwright.fleet.host_runs import _report_of_stopped, run_action
from rigwright.inventory.model import Host
from tests import reports
from tests.host_runs import host_run

HOST = Host("h", (), {})
STEP = Step("Room", "file.directory", lambda _facts: iter(()), {}, "play.yml:1")
CHANGE = Change("add", "/srv/room/", "", "there", ())
PENDING = PlanResult((PlannedStep(STEP, "pending", (CHANGE,)),))
APPLIED = ApplyResult((PlannedStep(STEP, "changed", (CHANGE,)),), {STEP.key: (CHANGE,)})
GOOD, BAD = Finding("GPUs", "pass", "8", check="a.b"), Finding("GPUs", "fail", "7", check="a.b")


def run() -> HostRun:
    """Returns a host whose commands all fail without output."""
    return host_run(lambda _cmd: Result(1, b""), host=HOST)


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([PENDING], "pending"),
        ([PlanResult(())], "ok"),
        ([PENDING, APPLIED], "changed"),
        ([PENDING, APPLIED, CheckResult((GOOD,))], "changed"),
        ([PENDING, APPLIED, CheckResult((BAD,))], "failed"),
        ([PlanResult(()), CheckResult((GOOD,))], "ok"),
        ([CheckResult((BAD,)), CheckResult((GOOD,))], "ok"),
        ([CommandResult(0, "")], "ok"),
        ([CommandResult(None, "")], "failed"),
    ],
)
def test_status(results: list[HostResult], status: str) -> None:
    report = HostReport(HOST)
    for result in results:
        report = report.with_result(result)
    assert report.status == status


def test_the_report_has_the_decisions_of_the_owner() -> None:
    decisions = {"a.b": Acceptance(datetime.date(9999, 1, 1), "known")}
    made = run()
    made.bound = replace(made.bound, desired=Desired(accepted=decisions))
    warning = replace(GOOD, verdict="warn")
    made.report = run_action(made, lambda _job: [CheckResult((warning,))])
    assert [each.verdict for each in made.report.findings] == ["info"]
    made.merge(CheckResult((*made.report.findings, BAD, warning)))
    assert [each.verdict for each in made.report.findings] == ["info", "fail", "info"]


def test_facts_from_before_a_change_are_not_kept() -> None:
    report = HostReport(HOST, kept={"driver.loaded_version": "535"})
    assert report.with_result(ApplyResult()).kept == report.kept
    assert report.with_result(APPLIED).kept == {}


def test_results_from_before_an_error_stay() -> None:
    def action(_job: HostRun) -> Iterator[HostResult]:
        yield APPLIED
        raise Unreachable("h", "the connection was lost")

    report = run_action(run(), action)
    assert (report.status, report.changes) == ("unreachable", 1)


@pytest.mark.parametrize(
    ("error", "is_described"), [(HostError("h", "no room"), True), (Unreachable("h", "lost"), False)]
)
def test_a_host_that_fails_and_still_answers_is_described(
    error: RigwrightError, is_described: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rigwright.engine.machine.describe", lambda _run: MachineResult({"gpus": []}))

    def stages() -> Iterator[HostResult]:
        yield PENDING
        raise error

    report = run_action(run(), lambda each: actions.with_description(each, stages()))
    assert report.error is error
    assert (report.get(MachineResult) is not None) == is_described


def test_the_error_of_the_action_counts_and_not_that_of_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_run: HostRun) -> None:
        raise Unreachable("h", "the connection was lost")

    monkeypatch.setattr("rigwright.engine.machine.describe", away)

    def stages() -> Iterator[HostResult]:
        raise HostError("h", "no room")
        yield

    report = run_action(run(), lambda each: actions.with_description(each, stages()))
    assert "no room" in str(report.error)
    assert (report.status, report.get(MachineResult)) == ("failed", None)


def test_a_second_error_does_not_replace_the_first() -> None:
    def failing(found: str) -> Callable[[HostRun], Iterator[HostResult]]:
        def action(_job: HostRun) -> Iterator[HostResult]:
            yield MachineResult({})
            raise HostError("h", found)

        return action

    each = run()
    each.report = run_action(each, failing("first"))
    again = run_action(each, failing("second"))
    assert again.error is each.report.error


OTHER = PlannedStep(replace(STEP, name="Other"), "pending")


@pytest.mark.parametrize(
    ("applied", "found"),
    [
        (APPLIED, ""),
        (replace(APPLIED, steps=(*APPLIED.steps, OTHER)), "stopped after some steps"),
        (replace(APPLIED, error=HostError("h", "refused")), "stopped after some steps"),
        (ApplyResult((PlannedStep(STEP, "failed"),)), "stopped in the middle of"),
    ],
    ids=["all complete", "one left", "an error", "a failed step"],
)
def test_how_far_it_came(applied: ApplyResult, found: str) -> None:
    report = _report_of_stopped(run(), reports.report(HOST, applied))
    assert str(report.error or "").find(found) >= 0
    assert (report.error is None) == (not found)
