"""The actions of a run on one host: connect, plan, apply, test, check, describe. Each yields the results of stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from rigwright.checks import ranked
from rigwright.core.errors import HostError, RigwrightError
from rigwright.core.host_result import HostResult
from rigwright.engine.events import ActivityStarted, Note
from rigwright.engine.host_run import HostRun
from rigwright.engine.report import ApplyResult, CheckResult, ConnectResult, FactsResult, NcclTestResult, PlanResult
from rigwright.facts import Fact, system
from rigwright.facts.boot import next_boot
from rigwright.facts.own_programs import at_work

if TYPE_CHECKING:
    from rigwright.checks import Finding
    from rigwright.engine.p2p.nccl_test import NcclTestOptions
    from rigwright.engine.p2p.nccl_tests import Programs
    from rigwright.engine.verify import CheckEvaluation

R = TypeVar("R")
Stages = Generator[HostResult, None, R]
"""Yields the results of stages; returns the result that the next stage needs."""


def connect_host(run: HostRun) -> Iterator[HostResult]:
    """Connects to the host, and waits for one that an interrupted run has rebooted. Raises Unreachable, Interrupted."""
    from rigwright.engine.boot import order

    began = time.monotonic()
    order.connect(run)
    yield ConnectResult(time.monotonic() - began)


def plan_host(run: HostRun, evaluation: CheckEvaluation | None = None) -> Stages[PlanResult]:
    """Plans all steps; the result also has steps that fail, and a required test. Notes programs of rigwright
    at work. The facts for the `evaluation` of checks are read in the same rounds."""
    from rigwright.engine import lease, own_programs
    from rigwright.engine.boot import trial
    from rigwright.engine.p2p import required

    run.prefetch((lease.holder, at_work))
    if required.concerns(run.bound):
        run.prefetch(required.FACTS)
    if any(step.declared.reboots for step in run.bound.steps):
        run.prefetch((*trial.FACTS, next_boot.conditions))
    steps = trial.with_trial_notes(
        run, run.bound.desired.reboot, run.planned(run.bound.steps, evaluation.evaluate if evaluation else None)
    )
    for program in own_programs.known(run):
        run.tell(Note(run.host.name, f"at work is {own_programs.in_words(program)}"))
    simulated, tests = str(run.value(system.simulated)), required.findings(run)
    result = PlanResult(steps, simulated, tests, required.gpu_count(run))
    yield result
    return result


def plan_or_fail(
    run: HostRun, describe: bool = False, checks: bool = False, unproved: bool = False
) -> Iterator[HostResult]:
    """Plans all steps, and notes what is new about the machine. Raises the error of the first step that fails, with
    `describe` after the description of the machine.

    `checks`: reads the facts of the checks in the same rounds, on a host that an earlier run has proved, with
    `unproved` on every host; a run without changes then needs no further round trip.
    """
    from rigwright.engine import identity, rollback
    from rigwright.engine.boot import continuation

    def stages() -> Iterator[HostResult]:
        proved = checks and (unproved or run.earlier is not None)
        result = yield from plan_host(run, _evaluation(run, NcclTestResult(), describe) if proved else None)
        notes = [f"{finding.seen} ({finding.cause}): {finding.fix}" for finding in identity.findings(run)]
        if run.host.is_this_machine and not continuation.continues():
            notes = [continuation.message(continuation.state(run)), *notes]
        if result.pending:
            notes.append(rollback.unfinished_note(run))
        for text in filter(None, notes):
            run.tell(Note(run.host.name, text))
        for step in result.steps:
            if step.error is not None:
                raise step.error

    yield from with_description(run, stages(), describe, always=False)


def apply_host(run: HostRun) -> Stages[ApplyResult]:
    """Applies the plan of the report, where it has changes. Raises the error that stopped it."""
    from rigwright.engine.apply import apply, tidy

    if run.report.status != "pending":
        tidy(run)
        return ApplyResult()
    result = apply(run, run.report.planned)
    yield result
    if result.error is not None:
        raise result.error
    return result


def provision_host(run: HostRun, wheels: str, describe: bool = False) -> Iterator[HostResult]:
    """Applies the plan of the report, runs the peer-to-peer test if it is required, and the checks.

    `wheels`: as in NcclTestOptions; "": as the inventory says. `describe`: adds the description of the machine.
    """

    def stages() -> Iterator[HostResult]:
        yield from apply_host(run)
        yield from prove_host(run, wheels, describe)

    yield from with_description(run, stages(), describe)


def prove_host(run: HostRun, wheels: str, describe: bool = False) -> Iterator[HostResult]:
    """Runs the peer-to-peer test if it is required, and the checks; their facts become the baseline."""
    from rigwright.engine import identity, verify

    tested = yield from _required_test(run, wheels)
    run.tell(ActivityStarted(run.host.name, "checking"))
    evaluation = _evaluation(run, tested, describe)
    checked = (*evaluation.findings(), *tested.not_run)
    required_tests = _settle_test(run, tested, checked)
    if evaluation.checks or tested.not_run or required_tests:
        findings = ranked((*identity.findings(run), *checked, *required_tests))
        yield CheckResult(findings, verify.baseline(run, findings, accept=True), required_tests)


def verify_host(
    run: HostRun, test: NcclTestOptions | None = None, programs: Programs | None = None, describe: bool = False
) -> Iterator[HostResult]:
    """Plans the steps, runs the requested tests, and the checks. A step that is not ok is a finding."""
    return with_description(run, _verify(run, test, programs, describe), describe)


def _verify(
    run: HostRun, test: NcclTestOptions | None, programs: Programs | None, describe: bool
) -> Iterator[HostResult]:
    from rigwright.engine import identity, verify

    tested = NcclTestResult()
    evaluation = None
    if test is None and programs is None:
        evaluation = _evaluation(run, tested, describe)
    planned = yield from plan_host(run, evaluation)
    if test is not None:
        tested = yield from _test(run, test)
    if programs is not None:
        tested = yield from _test_programs(run, programs, tested)
    run.tell(ActivityStarted(run.host.name, "checking"))
    if evaluation is None:
        evaluation = _evaluation(run, tested, describe)
    checked = (*evaluation.findings(), *tested.not_run)
    required_tests = _settle_test(run, tested, checked, only_required=True)
    first = (*verify.left_at_work(run), *identity.findings(run))
    findings = ranked((*first, *checked, *required_tests, *verify.drift(planned.steps)))
    yield CheckResult(findings, verify.baseline(run, findings, accept=False), required_tests)


def known_facts(run: HostRun, facts: Sequence[Fact[Any]]) -> FactsResult:
    """Those of the facts that are known."""
    known = run.store.known
    return FactsResult({fact.name: known[fact] for fact in facts if fact in known})


def check_measured(run: HostRun, **measured: Any) -> Iterator[HostResult]:
    """Runs the checks of the playbook that need no test. `measured`: what a measurement and the history say, by the
    name of the parameter of a check."""
    from rigwright.engine import verify

    run.tell(ActivityStarted(run.host.name, "checking"))
    checks = verify.answerable(run.bound.checks, run, tested=False)
    yield CheckResult(ranked(verify.CheckEvaluation(run, checks, measured).findings()))


def _settle_test(
    run: HostRun, tested: NcclTestResult, checked: Sequence[Finding], only_required: bool = False
) -> tuple[Finding, ...]:
    """Records a passed test on the host, with `only_required` a required one; warns of a test still required."""
    from rigwright.engine.p2p import required

    settles = tested.document and not (only_required and not required.findings(run))
    cause = required.settle(run, checked) if settles else ""
    return required.findings(run, cause)


def _evaluation(run: HostRun, tested: NcclTestResult, describe: bool) -> CheckEvaluation:
    """The evaluation of the checks that this run can answer; `describe`: with the facts of the description."""
    from rigwright.engine import machine, verify

    checks = verify.answerable(run.bound.checks, run, tested=tested.document is not None)
    if describe:
        run.prefetch(machine.FACTS)
    return verify.CheckEvaluation(run, checks)


def _test(run: HostRun, options: NcclTestOptions) -> Stages[NcclTestResult]:
    """Runs the peer-to-peer test if the playbook has a check that needs it."""
    if not any(check.declared.active for check in run.bound.checks):
        return NcclTestResult()
    from rigwright.engine.p2p import nccl_test

    run.tell(ActivityStarted(run.host.name, nccl_test.NAME))
    wheels = source_of_wheels(run, options.wheels)
    optional = options.optional or (not options.wheels and run.bound.desired.p2p_wheels == "none")
    result = nccl_test.test(run, replace(options, wheels="" if wheels == "none" else wheels, optional=optional))
    yield result
    return result


def _required_test(run: HostRun, wheels: str) -> Stages[NcclTestResult]:
    """Runs the peer-to-peer test if it is required, unless no libraries may be copied (`none`)."""
    from rigwright.engine.p2p import required

    if not required.findings(run):
        return NcclTestResult()
    from rigwright.engine.p2p import nccl_test

    wheels = wheels or nccl_test.AS_THE_INVENTORY_SAYS
    if source_of_wheels(run, wheels) == "none":
        return NcclTestResult()
    return (yield from _test(run, nccl_test.NcclTestOptions(wheels=wheels)))


def source_of_wheels(run: HostRun, given: str) -> str:
    """The source of the test's libraries: the given one, or that of the inventory for AS_THE_INVENTORY_SAYS."""
    from rigwright.engine.p2p import nccl_test

    return given if given != nccl_test.AS_THE_INVENTORY_SAYS else run.bound.desired.p2p_wheels or "fetch"


def _test_programs(run: HostRun, programs: Programs, tested: NcclTestResult) -> Stages[NcclTestResult]:
    """Runs the programs of the user; returns the results of all tests together."""
    from rigwright.engine.p2p import nccl_tests as nccl_programs

    run.tell(ActivityStarted(run.host.name, "running the test programs of the host"))
    needed = frozenset(check.declared.needs for check in run.bound.checks)
    result = nccl_programs.test(run, programs, needed)
    yield result
    return NcclTestResult(tested.document, (*tested.not_run, *result.not_run))


def plan_limits(run: HostRun, show: bool) -> Iterator[HostResult]:
    """Plans the steps. With `show`, and when the plan fails, the table of limits follows."""
    from rigwright.engine import limits

    run.prefetch(limits.FACTS)
    return _with_last_stage(plan_or_fail(run), partial(limits.read, run), always=show)


def apply_limits(run: HostRun) -> Iterator[HostResult]:
    """Applies the plan of the report; the table of limits follows, also when a change fails."""
    from rigwright.engine import limits

    return _with_last_stage(apply_host(run), partial(limits.read, run))


def with_description(
    run: HostRun, stages: Iterator[HostResult], describe: bool = True, always: bool = True
) -> Iterator[HostResult]:
    """The stages; with `describe` the description of the machine follows, without `always` only when a stage fails."""

    def description() -> HostResult:
        from rigwright.engine import machine

        return machine.describe(run)

    return _with_last_stage(stages, description, always) if describe else stages


def _with_last_stage(
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
