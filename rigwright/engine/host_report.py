"""What a run returns about one host: the result of each stage, and the report that holds all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from rigwright.checks import Finding, Verdict, problems
from rigwright.checks.problems import Judgement, Problem
from rigwright.core.change import Change
from rigwright.core.errors import RigwrightError
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.engine.attempt import Attempt
from rigwright.engine.events import Event, StepStarted
from rigwright.engine.measured_gpu import MeasuredGpu
from rigwright.engine.plan import PlannedStep
from rigwright.facts.machine import Past
from rigwright.inventory.model import Host

if TYPE_CHECKING:
    from rigwright.engine.limit_points import Sweep
    from rigwright.facts.nccl import Document
    from rigwright.facts.nodes import NodesMeasured
    from rigwright.facts.stress import Stress
    from rigwright.facts.training_smoke import Smoke

FAILS: tuple[Verdict, ...] = ("fail", "unknown")
"""Verdicts that make the status of a host `failed`."""

BAD: tuple[Verdict, ...] = (*FAILS, "warn")
"""Verdicts that a person should look at, the worst first."""

HostStatus = Literal["ok", "pending", "changed", "failed", "unreachable", "not_attempted"]


@dataclass(frozen=True)
class ConnectResult:
    """The host is connected. `seconds`: how long the login took."""

    seconds: float


@dataclass(frozen=True)
class PlanResult:
    """The plan of a host. `simulated`: the lab's description of a simulated host, "" for a real one.

    `owed`: warnings about tests that the host owes because of earlier changes. `gpus`: the number of its GPUs, None where it was not
    read.
    """

    steps: tuple[PlannedStep, ...]
    simulated: str = ""
    owed: tuple[Finding, ...] = ()
    gpus: int | None = None

    @property
    def pending(self) -> bool:
        """Whether a step needs a change, or cannot be planned before an earlier change."""
        return any(step.status in ("pending", "unknown") for step in self.steps)


@dataclass(frozen=True)
class ApplyResult:
    """The steps as they ended, the changes that were made (by `Step.key`), and the error that stopped the run, if any."""

    steps: tuple[PlannedStep, ...] = ()
    done: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    error: RigwrightError | None = None
    rebooted: bool = False


@dataclass(frozen=True)
class NcclTestResult:
    """The document of the peer-to-peer test, None when it did not run; `not_run`: one finding for each test that did not run."""

    document: Document | None = None
    not_run: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class CheckResult:
    """The findings of the checks, and of steps that are not as the playbook says.

    `baseline`: what the next run compares the host with; None: the recorded baseline stays. `owed`: those of the findings that say
    that the host still owes a test.
    """

    findings: tuple[Finding, ...]
    baseline: Past | None = None
    owed: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class FactsResult:
    """Facts by name, with the reason in place of the value where a fact cannot be read."""

    facts: Mapping[str, Any]


@dataclass(frozen=True)
class LimitsResult:
    """One row per GPU with its limits; `fleet.limit_rows` describes a row."""

    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class MachineResult:
    """The description of the machine: the key `machine` in docs/json.md."""

    machine: dict[str, Any]


@dataclass(frozen=True)
class HistoryResult:
    """What changed since an earlier report of the fleet: the key `fleet` in docs/json.md."""

    fleet: dict[str, Any]


@dataclass(frozen=True)
class IdentityResult:
    """Findings about the identity of the machine, in place of earlier ones; the status of the host stays."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class CommandResult:
    """How a one-off command ended: its exit code (None: the time limit passed) and its output. `cut`: the output was too long and
    its end is missing."""

    code: int | None
    output: str
    cut: bool = False


@dataclass(frozen=True)
class AttemptResult:
    """How far a try has come, in place of what an earlier stage said of it."""

    attempt: Attempt


@dataclass(frozen=True)
class StressResult:
    """The document of a stress of the GPUs."""

    stress: Stress


@dataclass(frozen=True)
class SmokeResult:
    """The document of a training of a small model."""

    smoke: Smoke


@dataclass(frozen=True)
class NodesResult:
    """What a run over several nodes found, for this one."""

    nodes: NodesMeasured


@dataclass(frozen=True)
class MeasuredResult:
    """The figures of the newest stress of each GPU that had one on this machine."""

    measured: tuple[MeasuredGpu, ...]


@dataclass(frozen=True)
class SweepResult:
    """A sweep over limits, as far as it has come."""

    sweep: Sweep


StageResult = (
    ConnectResult
    | PlanResult
    | ApplyResult
    | NcclTestResult
    | CheckResult
    | FactsResult
    | LimitsResult
    | MachineResult
    | HistoryResult
    | IdentityResult
    | CommandResult
    | AttemptResult
    | StressResult
    | SmokeResult
    | NodesResult
    | SweepResult
    | MeasuredResult
)


@dataclass(frozen=True)
class HostReport:
    """Everything a run knows about one host. `fleet.merge` makes a new report from a report and the result of a stage.

    `written`: what a worker wrote of the host for the JSON document, None where no worker did. `gpus`: as in PlanResult. `measured`: figures of earlier stresses, None where they were not looked up. `kept`: facts for the history, by name. `events`: with the seconds since the run began. `seconds`: time spent on the host, of
    which `connecting_s` was the login and `asking_s` the reading of facts.
    """

    host: Host
    status: HostStatus = "not_attempted"
    error: RigwrightError | None = None
    planned: tuple[PlannedStep, ...] = ()
    applied: ApplyResult | None = None
    findings: tuple[Finding, ...] = ()
    owed: tuple[Finding, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    baseline: Past | None = None
    rows: tuple[dict[str, Any], ...] = ()
    machine: dict[str, Any] | None = None
    fleet: dict[str, Any] | None = None
    events: tuple[tuple[float, Event], ...] = ()
    p2p: Document | None = None
    ran: CommandResult | None = None
    attempt: Attempt | None = None
    stress: Stress | None = None
    smoke: Smoke | None = None
    nodes: NodesMeasured | None = None
    sweep: Sweep | None = None
    measured: tuple[MeasuredGpu, ...] | None = None
    gpus: int | None = None
    written: Mapping[str, Any] | None = None
    simulated: str = ""
    round_trips: int = 0
    seconds: float = 0.0
    connecting_s: float = 0.0
    asking_s: float = 0.0

    @property
    def exit_code(self) -> int:
        """The exit code that the command would have if this were its only host."""
        if self.error is not None:
            return self.error.exit_code
        if self.ran is not None:
            return 0 if self.ran.code == 0 else 1
        return 2 if self.status in ("pending", "failed") else 0

    @property
    def changes(self) -> int:
        """How many changes were made."""
        return sum(map(len, self.applied.done.values())) if self.applied else 0

    @property
    def wrong(self) -> int:
        """How many findings have a verdict that fails the host."""
        return sum(finding.verdict in FAILS for finding in self.findings)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems that its findings show, the worst first."""
        return problems.problems(self.findings)

    @property
    def verdict(self) -> Judgement | None:
        """Whether the machine can be used, in one sentence; None if no check ran."""
        error = self.error.found if self.error else ""
        return problems.judge(self.problems, self.findings, error, self.status != "unreachable", len(self.owed))

    @property
    def owes(self) -> bool:
        """Whether the host owes a test, as far as this run knows: it owed one before, or a step that makes one owed has begun."""
        if self.findings:  # they were read after the changes
            return bool(self.owed)
        begun = {event.step for _, event in self.events if isinstance(event, StepStarted)}
        return bool(self.owed) or any(
            planned.step.name in begun and planned.step.declared.owes_p2p(self.gpus) for planned in self.planned
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
