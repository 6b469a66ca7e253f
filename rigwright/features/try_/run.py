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
from rigwright.engine.p2p import nccl_test
from rigwright.engine.report import ApplyResult, CheckResult, FactsResult, PlanResult
from rigwright.facts import past_runs, run_record, system
from rigwright.facts.gpu.figures import CONDITIONS
from rigwright.features.try_ import attempt, measurement
from rigwright.features.try_.attempt import Attempt, Measurement
from rigwright.features.try_.measurement import MeasurementOptions
from rigwright.fleet import actions
from rigwright.fleet.host_job import HostJob


def read_runs(job: HostJob) -> Iterator[HostResult]:
    """Reads the runs that the host remembers: the fact `run_record.runs` is known after it.

    Raises HostError when they cannot be read, and while another process tries a change.
    """
    tried = past_runs.cut_try(job.run.value(run_record.runs))
    if tried is not None and not run_owner.ended(tried.tried_by):
        fix = f"wait for it; if it was cut there: invoke rollback --host {job.host.name} --to {tried.run}"
        raise HostError(job.host.name, rollback.at_work(tried), "one try at a time", fix)
    yield from ()


def plan_unchanged(job: HostJob) -> Iterator[HostResult]:
    """Plans the playbook as the inventory has it. Raises HostError unless the host is so already: only one thing may
    change."""
    pending: list[str] = []
    for result in actions.plan_or_fail(job):
        yield result
        if isinstance(result, PlanResult):
            pending = [step.step.name for step in result.steps if step.status in ("pending", "unknown")]
    if pending:
        found = f"it is not as the inventory says: {', '.join(pending[:3])}"
        found += f" and {len(pending) - 3} more steps" if len(pending) > 3 else ""
        fix = f"invoke provision --host {job.host.name}; then the same command again"
        raise HostError(job.host.name, found, "a host to which a try changes one thing", fix)


def measure(
    job: HostJob, options: MeasurementOptions, change: str, note: str, with_checks: bool
) -> Iterator[HostResult]:
    """Measures the host as it is; begins the Attempt. `with_checks`: with the failed checks of the playbook, because a
    change follows; then HostError is raised when there is nothing to compare with."""
    measured = _measured(job, options)
    if with_checks and not (measured.passed or measured.failures):
        why = "; ".join(f"{part}: {text}" for part, text in measured.missing.items())
        fix = "--wheels fetch, or --wheels DIR with the libraries; invoke verify --tags p2p says more"
        raise HostError(job.host.name, f"it cannot be measured, so nothing was changed ({why})", "a measurement", fix)
    if with_checks:
        job.tell(ActivityStarted(job.host.name, "checking"))
        measured = measurement.with_findings(measured, _findings(job))
    else:
        if text := rollback.unended(job.run, job.bound):
            job.tell(Note(job.host.name, text))
        known = job.run.store.known
        yield FactsResult({fact.name: known[fact] for fact in (system.simulated, *CONDITIONS) if fact in known})
    yield Attempt(change, note, before=measured, before_run=job.run.options.run_id)


def change_and_measure(job: HostJob, options: MeasurementOptions) -> Iterator[HostResult]:
    """Applies the plan of the report, checks, measures again and compares. The decision is `left` until somebody
    decides; a change that fails is part of the Attempt.

    Raises Unreachable when the host does not come back, Interrupted, and the error of a change that did not begin.
    """
    begun = replace(job.report.last(Attempt), decision="left")
    applied = engine_apply.apply(job.run, job.bound, job.report.planned, tried=begun.change)
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
        after = _measured(job, options)
        checked = CheckResult(())
        if after.failures or after.missing:
            results: Iterable[HostResult] = [CheckResult(_findings(job))]
        else:
            results = actions.prove_host(job, options.wheels)
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


def _measured(job: HostJob, options: MeasurementOptions) -> Measurement:
    job.tell(ActivityStarted(job.host.name, "measuring"))
    wheels = actions.source_of_wheels(job, options.wheels or nccl_test.AS_THE_INVENTORY_SAYS)
    return measurement.measure_host(job.run, replace(options, wheels="" if wheels == "none" else wheels))


def _findings(job: HostJob) -> tuple[Finding, ...]:
    """The findings of the playbook's checks, also on the quick peer-to-peer test of the measurement."""
    checks = verify.answerable(job.bound.checks, job.run, tested=True)
    return verify.CheckEvaluation(job.run, checks).findings()


def keep(job: HostJob, kept: Attempt) -> Iterator[HostResult]:
    """Records on the host that the change of this run is kept. Raises HostError when it cannot be recorded."""
    _decide(job, job.run.options.run_id)
    yield kept


def _decide(job: HostJob, run: str) -> None:
    """Records on the host that somebody has decided on the change of a try."""
    result = job.run.transport.run([recorder.decision(run)])[0]
    if result.code != 0:
        found = f"the decision cannot be recorded: {result.error_text or 'no answer'}"
        raise HostError(job.host.name, found, f"room in {RUNS}")


def go_back(job: HostJob, why: str, run: str) -> Iterator[HostResult]:
    """Applies the playbook that takes the change of a run of `try` back. Raises the error that stopped it.

    Its changes are in the report after those of the try.
    """
    begun = job.report.last(Attempt)
    yield replace(begun, decision="left", why=why)
    job.run.store.forget()
    planned = job.run.planned(job.bound.steps)
    for step in planned:
        if step.error is not None:
            raise step.error
    tried, back = job.report.applied or ApplyResult(), engine_apply.apply(job.run, job.bound, planned)
    done = {key: (*tried.done.get(key, ()), *back.done.get(key, ())) for key in (*tried.done, *back.done)}
    yield ApplyResult((*tried.steps, *back.steps), done, back.error, tried.rebooted or back.rebooted)
    if back.error is not None:
        raise back.error
    _decide(job, run)


def prove_back(job: HostJob, options: MeasurementOptions) -> Iterator[HostResult]:
    """Proves that the host is as the inventory says, with the checks and the required test. Raises HostError when
    it is not."""
    begun = job.report.last(Attempt)
    steps = job.run.planned(job.bound.steps)
    pending = [step.step.name for step in steps if step.status != "ok" and step.status != "skipped"]
    if pending:
        found = f"it went back, and is not as the inventory says: {', '.join(pending[:3])}"
        raise HostError(job.host.name, found, "nothing left to do", f"invoke provision --host {job.host.name}")
    yield from actions.prove_host(job, options.wheels)
    yield replace(begun, decision="back")
