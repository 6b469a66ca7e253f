"""The report of a run about one host, and the results of the stages that every command shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from rigwright.checks import Finding, Verdict, declared, problems
from rigwright.checks.problems import Judgement, Problem
from rigwright.core.change import Change
from rigwright.core.errors import RigwrightError, Unreachable
from rigwright.core.host_result import HostResult, HostStatus, R
from rigwright.engine.events import Event, StepStarted
from rigwright.engine.plan import PlannedStep
from rigwright.facts import system
from rigwright.facts.machine import Past
from rigwright.facts.plain import plain
from rigwright.inventory.model import Host

if TYPE_CHECKING:
    from rigwright.facts.nccl.p2p_test import Document

FAILS: tuple[Verdict, ...] = ("fail", "unknown")
"""Verdicts that make the status of a host `failed`."""

BAD: tuple[Verdict, ...] = (*FAILS, "warn")
"""Verdicts that a person should look at, the worst first."""


class ConnectResult(HostResult, frozen=True):
    """The host is connected. `seconds`: how long all logins of the run took."""

    seconds: float = 0.0

    def combine(self, earlier: ConnectResult) -> ConnectResult:
        """The seconds of both logins."""
        return ConnectResult(earlier.seconds + self.seconds)


class PlanResult(HostResult, frozen=True):
    """The plan of a host. `simulated`: the lab's description of a simulated host, "" for a real one.

    `required_tests`: warnings about tests that earlier changes require. `gpus`: the number of its GPUs, None if it was
    not read.
    """

    steps: tuple[PlannedStep, ...] = ()
    simulated: str = ""
    required_tests: tuple[Finding, ...] = ()
    gpus: int | None = None

    @property
    def pending(self) -> bool:
        """Whether a step needs a change, or cannot be planned before an earlier change."""
        return any(step.status in ("pending", "unknown") for step in self.steps)

    def host_status(self, earlier: HostStatus) -> HostStatus:
        """pending or ok."""
        del earlier
        return "pending" if self.pending else "ok"


class ApplyResult(HostResult, frozen=True):
    """The steps as they ended, the changes that were made (by `Step.key`), and the error that stopped the run, if
    any."""

    STATUS = "changed"
    steps: tuple[PlannedStep, ...] = ()
    done: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    error: RigwrightError | None = None
    rebooted: bool = False

    @property
    def outdates_facts(self) -> bool:
        """Whether a change was made."""
        return bool(self.done)


class NcclTestResult(HostResult, frozen=True):
    """The document of the peer-to-peer test, None when it did not run; `not_run`: a finding for each test that did not
    run."""

    KEY = "p2p"
    document: Document | None = None
    not_run: tuple[Finding, ...] = ()

    def combine(self, earlier: NcclTestResult) -> NcclTestResult:
        """With the earlier document if this test did not run."""
        return replace(self, document=self.document or earlier.document)

    def as_json(self, report: HostReport) -> dict[str, Any] | None:
        """The document, plus `judged`: the findings of the checks that judge it. None without a test."""
        if self.document is None:
            return None
        test: dict[str, Any] = plain(self.document)
        for pair in test["pairs"]:
            pair["from"], pair["to"] = pair.pop("start"), pair.pop("end")
        active = [each for each in report.findings if (check := declared(each.check)) and check.active]
        test["judged"] = [{"check": finding.check, **plain(finding)} for finding in active]
        return test


class CheckResult(HostResult, frozen=True):
    """The findings of the checks, and of steps that are not as the playbook says.

    `baseline`: what the next run compares the host with; None: the recorded baseline stays. `required_tests`:
    those of the findings that say that a test is still required.
    """

    KEY = FIELD = "baseline"
    findings: tuple[Finding, ...] = ()
    baseline: Past | None = None
    required_tests: tuple[Finding, ...] = ()

    def host_status(self, earlier: HostStatus) -> HostStatus:
        """failed if a finding fails; else changed or ok."""
        if any(finding.verdict in FAILS for finding in self.findings):
            return "failed"
        return "changed" if earlier == "changed" else "ok"

    def combine(self, earlier: CheckResult) -> CheckResult:
        """With the earlier baseline if this one has none."""
        return replace(self, baseline=self.baseline or earlier.baseline)


class FactsResult(HostResult, frozen=True):
    """Facts by name, with the reason in place of the value where a fact cannot be read."""

    KEY = FIELD = "facts"
    STATUS = "ok"
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def simulated(self) -> str:
        """As in PlanResult."""
        return str(self.facts.get(system.simulated.name, ""))


class HostReport(Struct, frozen=True):
    """Everything a run knows about one host: its status, and the last result of each class, the newest at the end.

    `written`: what a worker wrote about the host for the JSON document, None without a worker. `kept`: facts for the
    history, by name. `events`: with the seconds since the run began. `seconds`: time spent on the host, of which the
    reading of facts took `asking_s`.
    """

    host: Host
    status: HostStatus = "not_attempted"
    error: RigwrightError | None = None
    results: Mapping[type[HostResult], HostResult] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] | None = None
    events: tuple[tuple[float, Event], ...] = ()
    round_trips: int = 0
    seconds: float = 0.0
    asking_s: float = 0.0

    def get(self, kind: type[R]) -> R | None:
        """The last result of this class, None without one."""
        return self.results.get(kind)  # type: ignore[return-value]

    def last(self, kind: type[R]) -> R:
        """The last result of this class; an empty one if there is none."""
        return self.get(kind) or kind()

    def with_result(self, result: HostResult) -> HostReport:
        """The report with the result of a stage, and with the status that follows from it."""
        results = dict(self.results)
        earlier = results.pop(type(result), None)
        results[type(result)] = result if earlier is None else result.combine(earlier)
        kept = {} if result.outdates_facts else self.kept
        return replace(self, results=results, status=result.host_status(self.status), kept=kept)

    def with_findings(self, findings: tuple[Finding, ...]) -> HostReport:
        """The report with these findings in place of its own; its status stays."""
        checked = replace(self.last(CheckResult), findings=findings, required_tests=self.required_tests)
        return replace(self, results={**self.results, CheckResult: checked})

    def with_error(self, error: RigwrightError) -> HostReport:
        """The report of a host that an error stopped."""
        return replace(self, status="unreachable" if isinstance(error, Unreachable) else "failed", error=error)

    def not_attempted(self) -> HostReport:
        """The report of a host that the run did not get to; a host with an error keeps it."""
        return self if self.error is not None else replace(self, status="not_attempted")

    @property
    def planned(self) -> tuple[PlannedStep, ...]:
        """The steps of the plan."""
        return self.last(PlanResult).steps

    @property
    def applied(self) -> ApplyResult | None:
        """How the steps ended; None if no change was tried."""
        return self.get(ApplyResult)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the checks."""
        return self.last(CheckResult).findings

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts that the command shows, by name."""
        return self.last(FactsResult).facts

    @property
    def required_tests(self) -> tuple[Finding, ...]:
        """Warnings about tests that are required, by the last plan or check."""
        results = (each for each in reversed([*self.results.values()]) if isinstance(each, (PlanResult, CheckResult)))
        return next((each.required_tests for each in results), ())

    @property
    def simulated(self) -> str:
        """The lab's description of a simulated host, "" for a real one."""
        return self.last(PlanResult).simulated or self.last(FactsResult).simulated

    @property
    def exit_code(self) -> int:
        """The exit code that the command would have if this were its only host."""
        if self.error is not None:
            return self.error.exit_code
        if self.status == "failed":
            return min((result.FAILURE_CODE for result in self.results.values()), default=2)
        return 2 if self.status == "pending" else 0

    @property
    def changes(self) -> int:
        """How many changes were made."""
        return sum(map(len, self.applied.done.values())) if self.applied else 0

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems that its findings show, the worst first."""
        return problems.problems(self.findings)

    @property
    def verdict(self) -> Judgement | None:
        """Whether the machine can be used, in one sentence; None if no check ran."""
        error = self.error.found if self.error else ""
        return problems.judge(
            self.problems, self.findings, error, self.status != "unreachable", len(self.required_tests)
        )

    @property
    def requires_test(self) -> bool:
        """Whether the host needs a test, as far as this run knows: it needed one before, or a step that requires one
        has begun."""
        if self.findings:  # they were read after the changes
            return bool(self.required_tests)
        begun = {event.step for _, event in self.events if isinstance(event, StepStarted)}
        return bool(self.required_tests) or any(
            planned.step.name in begun and planned.step.declared.requires_p2p_test(self.last(PlanResult).gpus)
            for planned in self.planned
        )

    @property
    def failed(self) -> int:
        """How many findings have the verdict `fail`."""
        return sum(finding.verdict == "fail" for finding in self.findings)

    @property
    def unanswered(self) -> int:
        """How many findings have the verdict `unknown`: neither passed nor failed."""
        return sum(finding.verdict == "unknown" for finding in self.findings)

    @property
    def passed(self) -> int:
        """How many findings have the verdict `pass`."""
        return sum(finding.verdict == "pass" for finding in self.findings)

    @property
    def bad(self) -> bool:
        """Whether the host has an error or a failed check."""
        return self.error is not None or self.status == "failed"
