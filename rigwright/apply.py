"""Makes a host so: plans a step, runs its changes, plans it again. An empty second answer is the only proof."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rigwright import events, jobs, plan
from rigwright.change import Change
from rigwright.errors import ConsentError, HostError, RigwrightError, Unreachable
from rigwright.facts import Fact, FactStore, Unavailable, Unreadable
from rigwright.facts import os as system
from rigwright.hosts import Host
from rigwright.playbook import Step
from rigwright.shell import Command, Result, command, script
from rigwright.transport import Transport

Emit = Callable[[events.Event], None]


@dataclass(frozen=True)
class Options:
    """How a run behaves. `disrupt`: what was not announced, and what interrupts running GPU work, may happen."""

    run_id: str
    disrupt: bool = False
    reboot_timeout_s: float = 900.0


@dataclass
class Reboots:
    """Reboots of a run go one host at a time, and end with the first host that does not come back."""

    lock: threading.Lock
    lost: str = ""


@dataclass
class Outcome:
    """What became of a host: every step with its status, the changes with whether they were made, and the error."""

    steps: list[plan.Planned] = field(default_factory=list)
    done: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    error: RigwrightError | None = None
    rebooted: bool = False


class HostRun:
    """One host in one run: its connection, what is known of it, and the plan so far."""

    def __init__(self, host: Host, transport: Transport, options: Options, emit: Emit, reboots: Reboots) -> None:
        self.name = host.name
        self.address = host.address
        self.transport = transport
        self.options = options
        self.emit = emit
        self.store = FactStore()
        self.also: tuple[Fact[Any], ...] = (system.boot_id, system.simulated)
        self._reboots = reboots
        self._announced = False

    def read(self, facts: Sequence[Fact[Any]]) -> None:
        """The facts are known, in one round trip; those of `also` with them."""
        asked = [*facts, *(fact for fact in self.also if fact not in self.store.known and fact not in facts)]
        answers = self.transport.run([fact.command for fact in asked], together=True)
        self.store.learn(zip(asked, answers, strict=True))
        if not self._announced:
            self._announced = True
            said = self.store.known[system.simulated]
            self.emit(events.Connected(self.name, self.address, said if isinstance(said, str) else ""))

    def planned(self, steps: Sequence[Step]) -> tuple[plan.Planned, ...]:
        """The plan of the steps, from facts."""
        return plan.make(steps, self.store, self.read)

    def value(self, fact: Fact[Any]) -> Any:
        """A fact's value, read if need be."""
        if fact not in self.store.known:
            self.read((fact,))
        try:
            return self.store(fact)
        except (Unavailable, Unreadable) as reason:
            raise HostError(self.name, str(reason), "an answer") from None

    def apply(self, steps: Sequence[Step], preview: Sequence[plan.Planned]) -> Outcome:
        """Every step is so, proved by its own plan; or the outcome's error says where it stopped, and the rest is as it was."""
        outcome = Outcome()
        announced = _announced(preview)
        try:
            jobs.take_lease(self.transport, self.name, self.options.run_id)
            try:
                self._finish_leftovers()
                self.store.forget()  # between the preview and the lease somebody else may have changed the host
                self._walk(steps, preview, announced, outcome)
            finally:
                with contextlib.suppress(RigwrightError):  # the run's own error is the one to tell
                    jobs.release_lease(self.transport, self.options.run_id)
        except RigwrightError as error:
            outcome.error = outcome.error or error
        done = {one.step.key for one in outcome.steps}
        outcome.steps += [one for one in preview if one.step.key not in done]
        return outcome

    def _finish_leftovers(self) -> None:
        for folder in self.value(jobs.leftovers):
            self.emit(events.Note(self.name, f"a job of an earlier run is still at work ({folder}); waiting for it"))
            jobs.watch(self.transport, folder, 3600, folder, lambda _line: None)
            self.store.forget()

    def _walk(
        self, steps: Sequence[Step], preview: Sequence[plan.Planned], announced: frozenset[str], outcome: Outcome
    ) -> None:
        pending = list(steps)
        moving = {one.step.key for one in preview if one.status in ("pending", "unknown")}
        while pending:
            # Planned as far as the next step that will change something: it forgets what was read for those behind it.
            reach = next((number for number, step in enumerate(pending, 1) if step.key in moving), len(pending))
            planned = self.planned(pending[:reach])
            taken = 0
            for one in planned:
                taken += 1
                if one.status == "pending":
                    outcome.steps.append(self._step(one, announced, outcome))
                    break
                outcome.steps.append(one)
                if one.status in ("failed", "unknown"):
                    raise one.error or HostError(one.step.name, one.reason)
            pending = pending[taken:]

    def _step(self, one: plan.Planned, announced: frozenset[str], outcome: Outcome) -> plan.Planned:
        """Runs a step's changes and proves them. Raises what stops the run, after recording the step as failed."""
        started = time.monotonic()
        self.emit(events.StepStarted(self.name, one.step.name, one.changes))
        try:
            self._consent(one, announced)
            for number, change in enumerate(one.changes):
                if change.reboot:
                    self._reboot(one.step, change)
                    outcome.rebooted = True
                else:
                    self._run(one.step.name, number, change.commands)
                outcome.done[one.step.key] = (*outcome.done.get(one.step.key, ()), change)
            self.store.forget()
            again = self.planned([one.step])[0]
            if again.status != "ok":
                left = [f"{change.subject}: {change.before or 'nothing'} -> {change.after}" for change in again.changes]
                found = f"ran, and the host still wants: {'; '.join(left) or again.reason}"
                todo = "look at what the host says, then run it again"
                raise again.error or HostError(one.step.name, found, "nothing left to do", todo)
        except RigwrightError as error:
            self.store.forget()
            outcome.steps.append(plan.Planned(one.step, "failed", one.changes, error.found))
            self.emit(events.StepDone(self.name, one.step.name, "failed", str(error), time.monotonic() - started))
            raise
        self.emit(events.StepDone(self.name, one.step.name, "changed", "", time.monotonic() - started))
        return plan.Planned(one.step, "changed", one.changes)

    def _consent(self, one: plan.Planned, announced: frozenset[str]) -> None:
        disruptive = [change for change in one.changes if change.disruptive]
        leads = any(change.leads_to == "reboot" for change in one.changes)
        if self.options.disrupt or not (disruptive or leads):
            return
        if disruptive and one.step.key not in announced:
            raise ConsentError(
                one.step.name,
                f"{disruptive[0].subject} was not announced ({disruptive[0].before})",
                "a yes to it",
                "the same command with --disrupt",
            )
        busy = self.busy()
        if busy:
            raise ConsentError(one.step.name, f"GPUs are in use by {busy}", "idle GPUs", "end them, or add --disrupt")

    def busy(self) -> str:
        """Who has a GPU open, ours apart: `python3 (4711)`, or "". Raises ConsentError when the host cannot tell."""
        from rigwright.facts import gpu

        found: dict[int, str] = {}
        for fact in (gpu.processes, gpu.holders):
            if fact not in self.store.known:
                self.read((gpu.processes, gpu.holders))
            value = self.store.known[fact]
            if fact is gpu.holders and isinstance(value, Unreadable):
                raise ConsentError(
                    self.name, f"who uses the GPUs cannot be told ({value})", "idle GPUs", "add --disrupt"
                )
            found.update({one.pid: one.name for one in (value if isinstance(value, tuple) else ())})
        own = ("nvidia-persiste", "nv-fabricmanage")  # as /proc/PID/comm cuts them
        return ", ".join(
            f"{name} ({pid})" for pid, name in found.items() if not name.rsplit("/", 1)[-1].startswith(own)
        )

    def _run(self, step: str, number: int, commands: Sequence[Command]) -> None:
        batch: list[Command] = []
        for part, cmd in enumerate(commands):
            if not cmd.long:
                batch.append(cmd)
                continue
            self._run_batch(step, batch)
            batch = []
            say = self._sayer(step)
            result = jobs.run(self.transport, self.options.run_id, step, number * 10 + part, cmd, say)
            _must(step, cmd, result)
        self._run_batch(step, batch)

    def _sayer(self, step: str) -> Callable[[str], None]:
        return lambda line: self.emit(events.OutputLine(self.name, step, line))

    def _run_batch(self, step: str, batch: list[Command]) -> None:
        if batch:
            with_lease = [jobs.keep_lease(self.options.run_id), *batch]
            for cmd, result in zip(with_lease, self.transport.run(with_lease), strict=False):
                _must(step, cmd, result)

    def _reboot(self, step: Step, change: Change) -> None:
        """The host runs again with another boot id, and is what the step wants; one host of the fleet at a time."""
        while not self._reboots.lock.acquire(timeout=60):
            self.transport.run([jobs.keep_lease(self.options.run_id)])
        try:
            if self._reboots.lost:
                found = f"{self._reboots.lost} did not come back from its reboot as it should, so this host was not rebooted"
                todo = f"look at {self._reboots.lost}; then run the same command again"
                raise HostError(self.name, found, "a fleet that comes back", todo)
            self._reboots.lost = self.name
            before = str(self.value(system.boot_id))
            self.emit(events.Note(self.name, f"rebooting: {change.before}"))
            delay = ("--on-active=1s", "--timer-property=AccuracySec=100ms")
            order = Command(("systemd-run", "--quiet", "--collect", *delay, "systemctl", "reboot"))
            self._run_batch(step.name, [command("sync"), order])
            self._await_boot(before)
            self.transport.run([script("timeout 240 systemctl is-system-running --wait || :", timeout_s=250)])
            if self._settles(step):
                self._reboots.lost = ""
        finally:
            self._reboots.lock.release()

    def _settles(self, step: Step) -> bool:
        """Whether a step is so within two minutes of a boot: a driver may load after systemd says that it is done."""
        deadline = time.monotonic() + 120
        while True:
            self.store.forget()
            if self.planned([step])[0].status == "ok":
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(5)

    def _await_boot(self, before: str) -> None:
        started = said = time.monotonic()
        while time.monotonic() - started < self.options.reboot_timeout_s:
            time.sleep(1)
            try:
                self.transport.connect(10)
                self.store.forget()
                if self.value(system.boot_id) != before:
                    self.emit(events.Note(self.name, f"back after {time.monotonic() - started:.0f} s"))
                    return
            except (Unreachable, Unreadable, HostError):
                pass
            if time.monotonic() - said > 30:
                said = time.monotonic()
                self.emit(events.Note(self.name, f"waiting for it to come back, {said - started:.0f} s so far"))
        found = f"it did not come back within {self.options.reboot_timeout_s:g} s of its reboot"
        raise Unreachable(self.name, found, "a boot", "look at its console; then run the same command again")


def _announced(preview: Sequence[plan.Planned]) -> frozenset[str]:
    """The steps whose disruption the preview showed: their own, or a reboot that an earlier change leads to."""
    leads = any(change.leads_to == "reboot" for one in preview for change in one.changes)
    return frozenset(
        one.step.key
        for one in preview
        if any(change.disruptive for change in one.changes) or (leads and one.step.operation == "reboot.into_wanted")
    )


def _must(step: str, cmd: Command, result: Result) -> None:
    """Raises HostError with a command's own last words when it failed."""
    if result.code == 0:
        return
    words = (result.error_text or result.text.strip()).splitlines()
    said = next((line for line in reversed(words) if line.startswith("E: ")), words[-1] if words else "nothing")
    what = "ran past its limit" if result.code in (124, 137) else f"failed (exit {result.code})"
    shown = str(cmd) if cmd.argv[0] != "sh" else "its script"
    todo = "mend that, then run the same command again"
    if said.startswith("E: "):
        raise HostError(step, said.removeprefix("E: "), todo=todo)
    raise HostError(step, f"{shown[:120]} {what}: {said}", "an exit of 0", todo)
