"""The actions of a run on one host: connect, plan, apply, test, check, describe. Each yields the results of stages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from rigwright.checks import ranked
from rigwright.core.errors import HostError, RigwrightError
from rigwright.core.host_result import HostResult
from rigwright.engine.events import ActivityStarted, Note
from rigwright.engine.report import ApplyResult, CheckResult, NcclTestResult, PlanResult
from rigwright.facts import system
from rigwright.facts.boot import next_boot
from rigwright.facts.own_programs import at_work
from rigwright.fleet import host_job
from rigwright.fleet.host_job import HostJob

if TYPE_CHECKING:
    from rigwright.checks import Finding
    from rigwright.engine.p2p.nccl_test import NcclTestOptions
    from rigwright.engine.p2p.nccl_tests import Programs
    from rigwright.engine.verify import CheckEvaluation

R = TypeVar("R")
Stages = Generator[HostResult, None, R]
"""Yields the results of stages; returns the result that the next stage needs."""


def connect_host(job: HostJob) -> Iterator[HostResult]:
    """Connects to the host, as `host_job.connect`."""
    yield host_job.connect(job)


def plan_host(job: HostJob, evaluation: CheckEvaluation | None = None) -> Stages[PlanResult]:
    """Plans all steps; the result also has steps that fail, and a required test. Notes programs of rigwright
    at work. The facts for the `evaluation` of checks are read in the same rounds."""
    from rigwright.engine import lease, own_programs
    from rigwright.engine.boot import trial
    from rigwright.engine.p2p import required

    job.run.prefetch((lease.holder, at_work))
    if required.concerns(job.bound):
        job.run.prefetch(required.FACTS)
    if any(step.declared.reboots for step in job.bound.steps):
        job.run.prefetch((*trial.FACTS, next_boot.conditions))
    steps = trial.with_trial_notes(
        job.run, job.bound.desired.reboot, job.run.planned(job.bound.steps, evaluation.evaluate if evaluation else None)
    )
    for program in own_programs.known(job.run):
        job.tell(Note(job.host.name, f"at work is {own_programs.in_words(program)}"))
    simulated, tests = str(job.run.value(system.simulated)), required.findings(job.run, job.bound)
    result = PlanResult(steps, simulated, tests, required.gpu_count(job.run))
    yield result
    return result


def plan_or_fail(
    job: HostJob, describe: bool = False, checks: bool = False, unproved: bool = False
) -> Iterator[HostResult]:
    """Plans all steps, and notes what is new about the machine. Raises the error of the first step that fails, with
    `describe` after the description of the machine.

    `checks`: reads the facts of the checks in the same rounds, on a host that an earlier run has proved, with
    `unproved` on every host; a run without changes then needs no further round trip.
    """
    from rigwright.engine import identity, rollback
    from rigwright.engine.boot import continuation

    def stages() -> Iterator[HostResult]:
        proved = checks and (unproved or job.run.earlier is not None)
        result = yield from plan_host(job, _evaluation(job, NcclTestResult(), describe) if proved else None)
        notes = [f"{finding.seen} ({finding.cause}): {finding.fix}" for finding in identity.findings(job.run)]
        if job.host.is_this_machine and not continuation.continues():
            notes = [continuation.message(continuation.state(job.run)), *notes]
        if result.pending:
            notes.append(rollback.unended(job.run, job.bound))
        for text in filter(None, notes):
            job.tell(Note(job.host.name, text))
        for step in result.steps:
            if step.error is not None:
                raise step.error

    yield from described(job, stages(), describe, always=False)


def apply_host(job: HostJob) -> Stages[ApplyResult]:
    """Applies the plan of the report, where it has changes. Raises the error that stopped it."""
    from rigwright.engine.apply import apply, tidy

    if job.report.status != "pending":
        tidy(job.run)
        return ApplyResult()
    result = apply(job.run, job.bound, job.report.planned)
    yield result
    if result.error is not None:
        raise result.error
    return result


def provision_host(job: HostJob, wheels: str, describe: bool = False) -> Iterator[HostResult]:
    """Applies the plan of the report, runs the peer-to-peer test if it is required, and the checks.

    `wheels`: as in NcclTestOptions; "": as the inventory says. `describe`: adds the description of the machine.
    """

    def stages() -> Iterator[HostResult]:
        yield from apply_host(job)
        yield from prove_host(job, wheels, describe)

    yield from described(job, stages(), describe)


def prove_host(job: HostJob, wheels: str, describe: bool = False) -> Iterator[HostResult]:
    """Runs the peer-to-peer test if it is required, and the checks; their facts become the baseline."""
    from rigwright.engine import identity, verify

    tested = yield from _required_test(job, wheels)
    job.tell(ActivityStarted(job.host.name, "checking"))
    evaluation = _evaluation(job, tested, describe)
    checked = (*evaluation.findings(), *tested.not_run)
    required_tests = _settled(job, tested, checked)
    if evaluation.checks or tested.not_run or required_tests:
        findings = ranked((*identity.findings(job.run), *checked, *required_tests))
        yield CheckResult(findings, verify.baseline(job.run, findings, accept=True), required_tests)


def verify_host(
    job: HostJob, test: NcclTestOptions | None = None, programs: Programs | None = None, describe: bool = False
) -> Iterator[HostResult]:
    """Plans the steps, runs the requested tests, and the checks. A step that is not ok is a finding."""
    return described(job, _verify(job, test, programs, describe), describe)


def _verify(
    job: HostJob, test: NcclTestOptions | None, programs: Programs | None, describe: bool
) -> Iterator[HostResult]:
    from rigwright.engine import identity, verify

    tested = NcclTestResult()
    evaluation = None
    if test is None and programs is None:
        evaluation = _evaluation(job, tested, describe)
    planned = yield from plan_host(job, evaluation)
    if test is not None:
        tested = yield from _test(job, test)
    if programs is not None:
        tested = yield from _test_programs(job, programs, tested)
    job.tell(ActivityStarted(job.host.name, "checking"))
    if evaluation is None:
        evaluation = _evaluation(job, tested, describe)
    checked = (*evaluation.findings(), *tested.not_run)
    required_tests = _settled(job, tested, checked, only_required=True)
    first = (*verify.left_at_work(job.run), *identity.findings(job.run))
    findings = ranked((*first, *checked, *required_tests, *verify.drift(planned.steps)))
    yield CheckResult(findings, verify.baseline(job.run, findings, accept=False), required_tests)


def _settled(
    job: HostJob, tested: NcclTestResult, checked: Sequence[Finding], only_required: bool = False
) -> tuple[Finding, ...]:
    """Records a passed test on the host, with `only_required` a required one; warns of a test still required."""
    from rigwright.engine.p2p import required

    settles = tested.document and not (only_required and not required.findings(job.run, job.bound))
    cause = required.settle(job.run, checked) if settles else ""
    return required.findings(job.run, job.bound, cause)


def _evaluation(job: HostJob, tested: NcclTestResult, describe: bool) -> CheckEvaluation:
    """The evaluation of the checks that this run can answer; `describe`: with the facts of the description."""
    from rigwright.engine import machine, verify

    checks = verify.answerable(job.bound.checks, job.run, tested=tested.document is not None)
    if describe:
        job.run.prefetch(machine.FACTS)
    return verify.CheckEvaluation(job.run, checks)


def _test(job: HostJob, options: NcclTestOptions) -> Stages[NcclTestResult]:
    """Runs the peer-to-peer test if the playbook has a check that needs it."""
    if not any(check.declared.active for check in job.bound.checks):
        return NcclTestResult()
    from rigwright.engine.p2p import nccl_test

    job.tell(ActivityStarted(job.host.name, nccl_test.NAME))
    wheels = source_of_wheels(job, options.wheels)
    result = nccl_test.test(job.run, replace(options, wheels="" if wheels == "none" else wheels))
    yield result
    return result


def _required_test(job: HostJob, wheels: str) -> Stages[NcclTestResult]:
    """Runs the peer-to-peer test if it is required, unless no libraries may be copied (`none`)."""
    from rigwright.engine.p2p import required

    if not required.findings(job.run, job.bound):
        return NcclTestResult()
    from rigwright.engine.p2p import nccl_test

    wheels = wheels or nccl_test.AS_THE_INVENTORY_SAYS
    if source_of_wheels(job, wheels) == "none":
        return NcclTestResult()
    return (yield from _test(job, nccl_test.NcclTestOptions(wheels=wheels)))


def source_of_wheels(job: HostJob, given: str) -> str:
    """The source of the test's libraries: the given one, or that of the inventory for AS_THE_INVENTORY_SAYS."""
    from rigwright.engine.p2p import nccl_test

    return given if given != nccl_test.AS_THE_INVENTORY_SAYS else job.bound.desired.p2p_wheels or "fetch"


def _test_programs(job: HostJob, programs: Programs, tested: NcclTestResult) -> Stages[NcclTestResult]:
    """Runs the programs of the user; returns the results of all tests together."""
    from rigwright.engine.p2p import nccl_tests as nccl_programs

    job.tell(ActivityStarted(job.host.name, "running the test programs of the host"))
    needed = frozenset(check.declared.needs for check in job.bound.checks)
    result = nccl_programs.test(job.run, programs, needed)
    yield result
    return NcclTestResult(tested.document, (*tested.not_run, *result.not_run))


def plan_limits(job: HostJob, show: bool) -> Iterator[HostResult]:
    """Plans the steps. With `show`, and when the plan fails, the table of limits follows."""
    from rigwright.engine import limits

    job.run.prefetch(limits.FACTS)
    return _followed(plan_or_fail(job), partial(limits.read, job.run, job.bound), always=show)


def apply_limits(job: HostJob) -> Iterator[HostResult]:
    """Applies the plan of the report; the table of limits follows, also when a change fails."""
    from rigwright.engine import limits

    return _followed(apply_host(job), partial(limits.read, job.run, job.bound))


def described(
    job: HostJob, stages: Iterator[HostResult], describe: bool = True, always: bool = True
) -> Iterator[HostResult]:
    """The stages; with `describe` the description of the machine follows, without `always` only when a stage fails."""

    def description() -> HostResult:
        from rigwright.engine import machine

        return machine.describe(job.run, job.bound)

    return _followed(stages, description, always) if describe else stages


def _followed(
    stages: Iterator[HostResult], last: Callable[[], HostResult], always: bool = True
) -> Iterator[HostResult]:
    """The stages, then one more, also when they raise HostError: the host still answers."""
    try:
        yield from stages
    except HostError:
        with suppress(RigwrightError):
            yield last()
        raise
    if always:
        yield last()
