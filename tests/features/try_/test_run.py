"""The actions of `try` when something goes wrong: what is raised, what is part of the Attempt, and what is said about
the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from rigwright.core.change import Change
from rigwright.core.command import Result
from rigwright.core.errors import ConsentError, HostError, Interrupted, RigwrightError, Unreachable
from rigwright.core.host_result import HostResult
from rigwright.engine import apply as engine_apply, run_owner, verify
from rigwright.engine.host_run import HostRun
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import BoundPlaybook, Step
from rigwright.engine.report import ApplyResult, CheckResult, PlanResult
from rigwright.features.try_ import measurement, run as attempts
from rigwright.features.try_.attempt import Attempt, Measurement
from rigwright.features.try_.measurement import MeasurementOptions
from rigwright.fleet import actions
from rigwright.inventory.model import Host
from tests import reports
from tests.facts.test_past_runs import runs
from tests.host_runs import host_run

STEP = Step("Driver installed", "driver.installed", lambda _facts: iter(()), {}, "provision.yml:1")
CHANGE = Change("change", "driver", "535", "580", ())
FAST = Measurement("2026-11-22T19:28:27Z", {"driver": "535"}, 16, rounds={"products": (90.0, 91.0, 92.0, 91.5)})
HANGS = replace(FAST, passed=9, failures={"GPU 0 to 1, copy": "hang"})
OPTIONS = MeasurementOptions()


def measured_host(steps: tuple[PlannedStep, ...] = (), run_id: str = "r1") -> HostRun:
    """Returns a host that was measured before a change; its steps are planned as given."""
    host = Host("frame", (), {})
    report = reports.report(host, Attempt("driver: 580", before=FAST, before_run="r1"), status="ok")
    run = host_run(
        lambda cmd: Result(1 if "full" in cmd.argv else 0, b"", b"no room"),
        run_id,
        bound=BoundPlaybook(host, (STEP,), ()),
        report=report,
    )
    run.planned = lambda _steps, _also=None: steps  # type: ignore[method-assign]
    return run


def result_of(run: HostRun, stages: Iterator[HostResult]) -> RigwrightError | None:
    """Merges the results of an action into the run's report; returns the error that it raised."""
    try:
        for result in stages:
            run.report = run.report.with_result(result)
    except RigwrightError as error:
        return error
    return None


def decided(run: HostRun) -> list[str]:
    """Returns the runs whose decision the host was told."""
    return [cmd.argv[-1] for cmd in run.transport.ran if "record/try" in cmd.argv[2]]  # type: ignore[attr-defined]


def applied(error: RigwrightError | None, done: bool, status: str = "failed") -> ApplyResult:
    step = PlannedStep(STEP, status if error else "changed", (CHANGE,))  # type: ignore[arg-type]
    return ApplyResult((step,), {STEP.key: (CHANGE,)} if done else {}, error)


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns what the next change and measurement return; an error is raised."""
    given: dict[str, Any] = {"apply": applied(None, True), "measure": FAST, "proved": 0, "tried": []}

    def prove(_job: HostRun, _wheels: str) -> Iterator[HostResult]:
        given["proved"] += 1
        yield CheckResult(())

    def measure(*_given: object) -> Measurement:
        if isinstance(given["measure"], Exception):
            raise given["measure"]
        found: Measurement = given["measure"]
        return found

    monkeypatch.setattr(engine_apply, "apply", lambda *_given, tried="": given["tried"].append(tried) or given["apply"])
    monkeypatch.setattr(measurement, "measure_host", measure)
    monkeypatch.setattr(actions, "prove_host", prove)
    monkeypatch.setattr(actions, "source_of_wheels", lambda _job, _given: "none")
    monkeypatch.setattr(verify, "answerable", lambda *_given, **_more: ())
    return given


@pytest.mark.parametrize(
    ("error", "done", "raised", "decision"),
    [
        (None, True, False, "left"),  # until somebody decides
        (HostError("apt", "it failed"), True, False, "left"),
        (HostError("apt", "the first step failed"), False, False, "left"),
        (ConsentError("apt", "the GPUs are in use"), True, False, "left"),
        (ConsentError("apt", "the GPUs are in use"), False, True, ""),
        (Unreachable("frame", "it did not come back"), True, True, "left"),
        (Interrupted("frame", "stopped"), True, True, "left"),
    ],
)
def test_a_change_that_fails(
    error: RigwrightError | None, done: bool, raised: bool, decision: str, after: dict[str, Any]
) -> None:
    after["apply"] = applied(error, done)
    run = measured_host()
    assert result_of(run, attempts.change_and_measure(run, OPTIONS)) == (error if raised else None)
    tried = run.report.last(Attempt)
    assert tried.decision == decision
    assert (tried.comparison is not None) == (error is None)
    assert tried.failure == ("" if raised or error is None else f"apt: {error.found}")
    assert after["proved"] == (1 if error is None else 0)
    assert after["tried"] == ["driver: 580"], "the host knows that it is a try"


def test_a_change_that_hangs_is_compared_and_one_that_cannot_be_measured_has_failed(after: dict[str, Any]) -> None:
    after["measure"] = HANGS
    run = measured_host()
    assert result_of(run, attempts.change_and_measure(run, OPTIONS)) is None
    assert run.report.last(Attempt).comparison.verdict == "refused"
    assert after["proved"] == 0
    after["measure"] = HostError("frame", "the GPUs are in use by python3 (4711)")
    assert result_of(run, attempts.change_and_measure(run, OPTIONS)) is None
    assert run.report.last(Attempt).failure == "frame: the GPUs are in use by python3 (4711)"


def test_a_host_that_cannot_be_measured_is_not_changed(after: dict[str, Any]) -> None:
    after["measure"] = Measurement("2026-11-22T19:28:27Z", missing={"peer-to-peer test": "libnccl.so.2 was not found"})
    run = measured_host()
    error = result_of(run, attempts.measure(run, OPTIONS, "driver: 580", "", with_checks=True))
    assert error is not None
    assert "nothing was changed (peer-to-peer test: libnccl.so.2 was not found)" in error.found


@pytest.mark.parametrize(
    ("status", "refused"), [("ok", False), ("skipped", False), ("pending", True), ("unknown", True)]
)
def test_only_a_host_that_is_as_the_inventory_says_is_tried(
    status: Any, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(_job: HostRun) -> Iterator[HostResult]:
        yield PlanResult((PlannedStep(STEP, status, (CHANGE,)),) * 5)

    monkeypatch.setattr(actions, "plan_or_fail", plan)
    error = result_of(run := measured_host(), attempts.plan_unchanged(run))
    assert (error is not None) == refused
    if error is not None:
        assert error.found.endswith("Driver installed, Driver installed, Driver installed and 2 more steps")
        assert error.fix == "invoke provision --host frame; then the same command again"


@pytest.mark.parametrize("error", [None, HostError("apt", "no source has 535.261.03")])
def test_the_way_back(error: RigwrightError | None, after: dict[str, Any]) -> None:
    after["apply"] = applied(error, True)
    run = measured_host((PlannedStep(STEP, "pending", (CHANGE,)),))
    run.report = run.report.with_result(applied(None, True))
    assert result_of(run, attempts.go_back(run, "it is slower", "r0")) == error
    assert decided(run) == ([] if error else ["r0"])
    assert after["tried"] == [""], "the way back is no try"
    assert (run.report.last(Attempt).decision, run.report.last(Attempt).why) == ("left", "it is slower")
    assert run.report.changes == 2, "those of the try and those of the way back"


def test_a_way_back_that_cannot_be_planned_changes_nothing(after: dict[str, Any]) -> None:
    after["apply"] = None
    error = HostError("Record", "the record is damaged")
    run = measured_host((PlannedStep(STEP, "failed", (), error.found, error),))
    assert result_of(run, attempts.go_back(run, "it is slower", "r1")) == error
    assert decided(run) == []


@pytest.mark.parametrize("run_id", ["r1", "full"])
def test_a_change_is_kept_once_the_host_knows(run_id: str) -> None:
    run = measured_host(run_id=run_id)
    kept = Attempt("driver: 580", before=FAST, decision="kept")
    error = result_of(run, attempts.keep(run, kept))
    assert decided(run) == [run_id]
    assert (run.report.last(Attempt) == kept) == (error is None) == (run_id == "r1")


@pytest.mark.parametrize("status", ["ok", "pending", "unknown", "failed"])
def test_back_is_what_the_inventory_says(status: Any, after: dict[str, Any]) -> None:
    run = measured_host((PlannedStep(STEP, status, (CHANGE,)), PlannedStep(STEP, "skipped")))
    run.report = run.report.with_result(Attempt("driver: 580", before=FAST, decision="left"))
    error = result_of(run, attempts.prove_back(run, OPTIONS))
    assert run.report.last(Attempt).decision == ("back" if status == "ok" else "left")
    assert after["proved"] == (1 if status == "ok" else 0)
    assert (error is None) == (status == "ok")


def test_a_try_of_another_process_is_not_taken_back() -> None:
    run = measured_host()
    for by, at_work in ((run_owner.owner("b"), True), (f"{run_owner.owner('b').rpartition(' ')[0]} 1", False)):
        run.value = lambda _fact, by=by: runs("a", "b?", by=by)  # type: ignore[method-assign]
        error = result_of(run, attempts.read_runs(run))
        assert (error is not None) == at_work
        assert error is None or error.fix == "wait for it; if it was cut there: invoke rollback --host frame --to b"
