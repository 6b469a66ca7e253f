"""The actions of `invoke try` on one host: measure, change, measure again, keep or go back. Each yields the results of
its stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from rigwright.checks import Finding
from rigwright.core.errors import ConsentError, HostError, Interrupted, RigwrightError, Unreachable
from rigwright.core.host_folders import RUNS
from rigwright.core.host_result import HostResult
from rigwright.engine import apply as engine_apply, rollback, run_owner, run_record as recorder, verify
from rigwright.engine.events import ActivityStarted, Note
from rigwright.engine.host_run import HostRun
from rigwright.engine.p2p import nccl_test
from rigwright.engine.report import ApplyResult, CheckResult, PlanResult
from rigwright.facts import past_runs, run_record, system
from rigwright.facts.gpu.figures import CONDITIONS
from rigwright.features.try_ import attempt, measurement
from rigwright.features.try_.attempt import Attempt, Measurement
from rigwright.features.try_.measurement import MeasurementOptions
from rigwright.fleet import actions


def read_runs(run: HostRun) -> Iterator[HostResult]:
    """Reads the runs that the host remembers: the fact `run_record.runs` is known after it.

    Raises HostError when they cannot be read, and while another process tries a change.
    """
    tried = past_runs.cut_try(run.value(run_record.runs))
    if tried is not None and not run_owner.has_ended(tried.tried_by):
        fix = f"wait for it; if it was cut there: invoke rollback --host {run.host.name} --to {tried.run}"
        raise HostError(run.host.name, rollback.at_work(tried), "one try at a time", fix)
    yield from ()


def plan_unchanged(run: HostRun) -> Iterator[HostResult]:
    """Plans the playbook as the inventory has it. Raises HostError unless the host is so already: only one thing may
    change."""
    pending: list[str] = []
    for result in actions.plan_or_fail(run):
        yield result
        if isinstance(result, PlanResult):
            pending = [step.step.name for step in result.steps if step.status in ("pending", "unknown")]
    if pending:
        problem = f"it is not as the inventory says: {', '.join(pending[:3])}"
        problem += f" and {len(pending) - 3} more steps" if len(pending) > 3 else ""
        fix = f"invoke provision --host {run.host.name}; then the same command again"
        raise HostError(run.host.name, problem, "a host to which a try changes one thing", fix)


def measure(
    run: HostRun, options: MeasurementOptions, change: str, note: str, with_checks: bool
) -> Iterator[HostResult]:
    """Measures the host as it is; begins the Attempt. `with_checks`: with the failed checks of the playbook, because a
    change follows; then HostError is raised when there is nothing to compare with."""
    measured = _measure(run, options)
    if with_checks and not (measured.passed or measured.failures):
        why = "; ".join(f"{part}: {text}" for part, text in measured.missing.items())
        fix = "--wheels fetch, or --wheels DIR with the libraries; invoke verify --tags p2p says more"
        raise HostError(run.host.name, f"it cannot be measured, so nothing was changed ({why})", "a measurement", fix)
    if with_checks:
        run.tell(ActivityStarted(run.host.name, "checking"))
        measured = measurement.with_findings(measured, _findings(run))
    else:
        if text := rollback.unfinished_note(run):
            run.tell(Note(run.host.name, text))
        yield actions.known_facts(run, (system.simulated, *CONDITIONS))
    yield Attempt(change, note, before=measured, before_run=run.options.run_id)


def change_and_measure(run: HostRun, options: MeasurementOptions) -> Iterator[HostResult]:
    """Applies the plan of the report, checks, measures again and compares. The decision is `left` until somebody
    decides; a change that fails is part of the Attempt.

    Raises Unreachable when the host does not come back, Interrupted, and the error of a change that did not begin.
    """
    begun = replace(run.report.last(Attempt), decision="left")
    applied = engine_apply.apply(run, run.report.planned, tried=begun.change)
    yield applied
    failed = any(step.status == "failed" for step in applied.steps)
    if applied.error is not None and not applied.done and (isinstance(applied.error, ConsentError) or not failed):
        raise applied.error  # nothing was changed
    yield begun
    if applied.error is not None:
        if isinstance(applied.error, (Unreachable, Interrupted)):
            raise applied.error
        yield replace(begun, failure=_in_words(applied.error))
        return
    try:
        after = _measure(run, options)
        checked = CheckResult(())
        if after.failures or after.missing:
            results: Iterable[HostResult] = [CheckResult(_findings(run))]
        else:
            results = actions.prove_host(run, options.wheels)
        for result in results:
            yield result
            checked = result if isinstance(result, CheckResult) else checked
    except HostError as error:
        yield replace(begun, failure=_in_words(error))
        return
    after = measurement.with_findings(after, checked.findings)
    yield replace(begun, after=after, comparison=attempt.compare(begun.before or after, after))


def _in_words(error: RigwrightError) -> str:
    return f"{error.where}: {error.found}" if error.where else error.found


def _measure(run: HostRun, options: MeasurementOptions) -> Measurement:
    run.tell(ActivityStarted(run.host.name, "measuring"))
    wheels = actions.source_of_wheels(run, options.wheels or nccl_test.AS_THE_INVENTORY_SAYS)
    return measurement.measure_host(run, replace(options, wheels="" if wheels == "none" else wheels))


def _findings(run: HostRun) -> tuple[Finding, ...]:
    """The findings of the playbook's checks, also on the quick peer-to-peer test of the measurement."""
    checks = verify.answerable(run.bound.checks, run, tested=True)
    return verify.CheckEvaluation(run, checks).findings()


def keep(run: HostRun, kept: Attempt) -> Iterator[HostResult]:
    """Records on the host that the change of this run is kept. Raises HostError when it cannot be recorded."""
    _decide(run, run.options.run_id)
    yield kept


def _decide(run: HostRun, run_id: str) -> None:
    """Records on the host that somebody has decided on the change of a try."""
    result = run.transport.run([recorder.decision(run_id)])[0]
    if result.code != 0:
        problem = f"the decision cannot be recorded: {result.error_text or 'no answer'}"
        raise HostError(run.host.name, problem, f"room in {RUNS}")


def go_back(run: HostRun, why: str, run_id: str) -> Iterator[HostResult]:
    """Applies the playbook that takes the change of a run of `try` back. Raises the error that stopped it.

    Its changes are in the report after those of the try.
    """
    begun = run.report.last(Attempt)
    yield replace(begun, decision="left", why=why)
    run.store.forget()
    planned = run.planned(run.bound.steps)
    for step in planned:
        if step.error is not None:
            raise step.error
    tried, back = run.report.applied or ApplyResult(), engine_apply.apply(run, planned)
    done = {key: (*tried.done.get(key, ()), *back.done.get(key, ())) for key in (*tried.done, *back.done)}
    yield ApplyResult((*tried.steps, *back.steps), done, back.error, tried.rebooted or back.rebooted)
    if back.error is not None:
        raise back.error
    _decide(run, run_id)


def prove_back(run: HostRun, options: MeasurementOptions) -> Iterator[HostResult]:
    """Proves that the host is as the inventory says, with the checks and the required test. Raises HostError when
    it is not."""
    begun = run.report.last(Attempt)
    steps = run.planned(run.bound.steps)
    pending = [step.step.name for step in steps if step.status != "ok" and step.status != "skipped"]
    if pending:
        problem = f"it went back, and is not as the inventory says: {', '.join(pending[:3])}"
        raise HostError(run.host.name, problem, "nothing left to do", f"invoke provision --host {run.host.name}")
    yield from actions.prove_host(run, options.wheels)
    yield replace(begun, decision="back")
