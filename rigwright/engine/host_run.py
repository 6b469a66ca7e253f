"""The state of one host during a run: its connection, the facts read so far, its events, and its critical sections."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from rigwright.checks import accepted
from rigwright.core.command import Command
from rigwright.core.errors import HostError, Interrupted, RigwrightError
from rigwright.core.host_result import HostResult
from rigwright.core.machine_identity import MachineIdentity
from rigwright.engine import events, plan, run_owner
from rigwright.engine.playbook import BoundPlaybook, Step
from rigwright.engine.report import CheckResult, HostReport
from rigwright.engine.shared_results import SharedResults
from rigwright.facts import Fact, FactStore, Unavailable, Unreadable, scratch, system
from rigwright.facts.machine import Past
from rigwright.history.machines import Match, RecordedMachines
from rigwright.inventory.model import Host
from rigwright.ssh.transport import Transport

EventSink = Callable[[events.Event], None]
Stage = Callable[[Sequence[str]], contextlib.AbstractContextManager[object]]
"""A context that shows the progress of the hosts with these names."""

MOST_OWNERS = 200
"""The most marks of other runs that are looked at when scratch directories are removed."""


class Options(Struct, frozen=True):
    """Options of a run.

    `disrupt`: changes may interrupt running GPU work, also without an announcement in the plan. `reboots`: how many
    hosts may reboot at a time. `root`: commands run as root; otherwise as the user who logs in. `restart`: the words
    that start this command again after a reboot of the machine that it runs on, () for a command that cannot go on;
    `restart_title` is its name. `earlier_runs`: the earlier runs of the same rollout; this run takes over hosts that
    one of them has not released. `announced`: by host the names of the steps whose disruption a person was shown; None:
    those of the plan of this run.
    """

    run_id: str
    disrupt: bool = False
    reboots: int = 1
    root: bool = True
    restart: tuple[str, ...] = ()
    restart_title: str = ""
    earlier_runs: tuple[str, ...] = ()
    announced: Mapping[str, Sequence[str]] | None = None


class RunState(Struct):
    """State that all hosts of a run share.

    `reboot_slots` limits concurrent reboots. `lost`: the name of a host that did not come back from a reboot; no other
    host is rebooted after that. `failed`: names of hosts; with more than `most_failed` (None: no limit) no further
    host begins. `stopping` is set by the first Ctrl-C. `results`: of steps and checks, which hosts have
    in common.
    """

    reboot_slots: threading.Semaphore
    lost: str = ""
    failed: set[str] = field(default_factory=set)
    most_failed: int | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    results: SharedResults = field(default_factory=SharedResults)


def no_events(_event: events.Event) -> None:
    """No-op event sink."""


class HostRun:
    """One host in one run: its playbook, connection and report.

    `since` is the monotonic time at which the run began; `events` have seconds since then. `tell` shows an event that
    is not part of the report. `stage` shows the progress of hosts.
    """

    def __init__(
        self,
        bound: BoundPlaybook,
        transport: Transport,
        options: Options,
        tell: EventSink,
        state: RunState,
        since: float | None = None,
        stage: Stage = contextlib.nullcontext,
    ) -> None:
        self.bound = bound
        self.transport = transport
        self.options = options
        self.tell = tell
        self.state = state
        self.stage = stage
        self.report = HostReport(bound.host)
        """Replaced by a new one after each action, only by the package fleet."""
        self.to_connect = False
        """Whether the next action connects to the host first."""
        self.left_in = ""
        """The critical section that a second Ctrl-C abandoned."""
        self.since = time.monotonic() if since is None else since
        self.store = FactStore()
        self.events: list[tuple[float, events.Event]] = []
        self.announced = False
        """Whether the event Connected was sent."""
        self.rebooting = False
        self.abandoned = False
        """Whether `stop` has closed the connection."""
        self.current_section = ""
        """The name of the critical section that is open, "" for none."""
        self.asking_s = 0.0
        self.untidy = False
        """Whether the host has scratch directories, of this run or of an earlier one."""
        self.asked: dict[Command, None] = {}
        """The commands that read the host before anything may have changed it, without those that use a scratch
        directory."""
        self.recorded = RecordedMachines()
        """The machines of the history."""
        self._matched: tuple[RecordedMachines, object, object, Match] | None = None
        """The match of this host, and what it was made of; each check asks for it."""
        self._prefetch: dict[Fact[Any], None] = {}
        self._critical = threading.Lock()

    @property
    def host(self) -> Host:
        """The host, with its name, address and variables."""
        return self.bound.host

    def merge(self, result: HostResult) -> None:
        """Merges a result that was computed without the host, such as a comparison with other hosts."""
        self.report = self.report.with_result(self.with_decisions(result))

    def with_decisions(self, result: HostResult) -> HostResult:
        """The result; findings of checks with the decisions of the owner."""
        if not isinstance(result, CheckResult):
            return result
        findings = accepted.with_decisions(result.findings, self.bound.desired.accepted)
        return replace(result, findings=findings)

    def restart(self) -> None:
        """Closes the connection and begins a new report, so that the next action tries the host again."""
        self.transport.close()
        self.report = HostReport(self.host)

    def emit(self, event: events.Event) -> None:
        """Records an event, without known secrets, and passes it to the event sink."""
        event = events.redacted(event)
        self.events.append((time.monotonic() - self.since, event))
        self.tell(event)

    def note(self, text: str) -> None:
        """Emits a message for the user."""
        self.emit(events.Note(self.host.name, text))

    def output_sink(self, name: str) -> Callable[[str], None]:
        """A function that emits a line of a program's output as an event."""
        return lambda line: self.emit(events.OutputLine(self.host.name, name, line))

    def raise_if_stopped(self) -> None:
        """Raises Interrupted after the first Ctrl-C."""
        if self.state.stopping.is_set():
            raise Interrupted(self.host.name, "stopped", "", "run the same command again; it continues from there")

    @contextlib.contextmanager
    def critical_section(self, name: str) -> Iterator[None]:
        """A section that the first Ctrl-C does not interrupt. Raises Interrupted when the run was stopped before it
        begins."""
        with self._critical:
            self.raise_if_stopped()
            self.current_section = name
            try:
                yield
            finally:
                self.current_section = ""

    def stop(self) -> bool:
        """Closes the connection, which ends reading and waiting. Returns False, and does nothing, inside a critical
        section."""
        if not self._critical.acquire(blocking=False):
            return False
        try:
            self.abandoned = True
            self.transport.abandon()
        finally:
            self._critical.release()
        return True

    def prefetch(self, facts: Iterable[Fact[Any]]) -> None:
        """Adds facts to the next round trip that reads facts."""
        self._prefetch.update(dict.fromkeys(facts))

    def read(self, facts: Sequence[Fact[Any]]) -> None:
        """Reads facts, and those that are prefetched, in one round trip. Boot id, simulation and identity are read
        along when not known."""
        along: tuple[Fact[Any], ...] = (
            system.boot_id,
            system.simulated,
            system.identity,
            *(() if self.untidy else (scratch.left,)),
            *self._prefetch,
        )
        self._prefetch.clear()
        asked = tuple(dict.fromkeys((*facts, *(fact for fact in along if fact not in self.store.known))))
        if not self.transport.acted:
            self.asked.update({fact.command: None for fact in asked if not fact.scratch})
        began = time.monotonic()
        answers = self.transport.run([fact.command for fact in asked], together=True)
        self.asking_s += time.monotonic() - began
        self.store.learn(zip(asked, answers, strict=True))
        self.untidy = self.untidy or any(fact.scratch for fact in asked) or self.store.known.get(scratch.left) is True
        if not self.announced:
            self.announced = True
            simulated = self.store.known[system.simulated]
            description = simulated if isinstance(simulated, str) else ""
            self.emit(events.Connected(self.host.name, self.host.address, description))
            if self.transport.warning:
                self.note(self.transport.warning)

    def tidy(self) -> None:
        """Removes the scratch directories of this run, and those that runs have left which ended early; those of a run
        at work stay.

        Without an open connection, and where the host does not answer, they are left for the next run.
        """
        if not self.untidy or self.abandoned or self.rebooting or not self.options.root:
            return
        with contextlib.suppress(RigwrightError):
            mine = self.options.run_id
            answer = self.transport.run([scratch.tidy(mine)])[0]
            owners = dict.fromkeys(answer.text.split("\n", MOST_OWNERS)[:MOST_OWNERS])
            if ended := tuple(owner for owner in owners if run_owner.has_ended(owner)):
                self.transport.run([scratch.tidy(mine, ended)])
            self.untidy = False

    @property
    def match(self) -> Match:
        """The machine of the history that this host is; by its name and address as long as its identity is not
        known."""
        identity, simulated = (self.store.known.get(fact) for fact in (system.identity, system.simulated))
        if self._matched is None or any(
            now is not then for now, then in zip((self.recorded, identity, simulated), self._matched, strict=False)
        ):
            known = identity if isinstance(identity, MachineIdentity) else MachineIdentity()
            match = self.recorded.match(
                self.host.name, self.host.address, known, isinstance(simulated, str) and simulated != ""
            )
            self._matched = (self.recorded, identity, simulated, match)
        return self._matched[3]

    @property
    def earlier(self) -> Past | None:
        """The machine in its last good run, which checks compare with; None when no run recorded it."""
        machine = self.match.machine
        return Past.of(machine.baseline) if machine and machine.baseline else None

    def read_unknown(self, facts: Sequence[Fact[Any]]) -> None:
        """Reads those of the facts that are not known."""
        if unknown := [fact for fact in facts if fact not in self.store.known]:
            self.read(unknown)

    def planned(
        self, steps: Sequence[Step], also: Callable[[], Iterable[Fact[Any]]] | None = None
    ) -> tuple[plan.PlannedStep, ...]:
        """The plan of the steps; reads the facts that it needs. Each round trip also reads the facts that `also`
        returned before it."""

        def read(facts: Sequence[Fact[Any]]) -> None:
            self.read(facts)
            if also is not None:
                self.prefetch(also())

        if also is not None:
            self.prefetch(also())
        planned = plan.plan_steps(steps, self.store, read, self.state.results)
        for step in planned:
            if step.error and (place := self.host.origins.get(step.error.where.partition(".")[0])):
                step.error.where = f"{step.error.where} ({place})"
        return planned

    def value(self, fact: Fact[Any]) -> Any:
        """The value of a fact, read when not known. Raises HostError when the host cannot answer."""
        self.read_unknown((fact,))
        try:
            return self.store(fact)
        except (Unavailable, Unreadable) as reason:
            cause = reason.fix if isinstance(reason, Unreadable) else ""
            fix = f"{cause or 'correct the cause on the host'}; then run the same command again"
            raise HostError(self.host.name, str(reason), "an answer", fix) from None
