"""Makes a host so: plans a step, runs its changes, plans it again. An empty second answer is the only proof."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from rigwright import events, jobs, plan
from rigwright.change import Change
from rigwright.errors import ConsentError, HostError, RigwrightError, Unreachable
from rigwright.facts import Unreadable
from rigwright.facts import os as system
from rigwright.hostrun import HostRun, Outcome
from rigwright.playbook import Step
from rigwright.shell import Command, Result, command, script


def apply(run: HostRun, steps: Sequence[Step], preview: Sequence[plan.Planned]) -> Outcome:
    """Every step is so, proved by its own plan; or the outcome's error says where it stopped, and the rest is as it was."""
    return _Applying(run).all(steps, preview)


class _Applying:
    """The steps of one host, one after the other."""

    def __init__(self, run: HostRun) -> None:
        self.run = run

    def all(self, steps: Sequence[Step], preview: Sequence[plan.Planned]) -> Outcome:
        """Every step is so, or the outcome's error says where it stopped."""
        outcome = Outcome()
        announced = _announced(preview)
        try:
            jobs.take_lease(self.run.transport, self.run.name, self.run.options.run_id)
            try:
                self._finish_leftovers()
                self.run.store.forget()  # between the preview and the lease somebody else may have changed the host
                self._walk(steps, preview, announced, outcome)
            finally:
                with contextlib.suppress(RigwrightError):  # the run's own error is the one to tell
                    jobs.release_lease(self.run.transport, self.run.options.run_id)
        except RigwrightError as error:
            outcome.error = outcome.error or error
        done = {one.step.key for one in outcome.steps}
        outcome.steps += [one for one in preview if one.step.key not in done]
        return outcome

    def _finish_leftovers(self) -> None:
        for folder in self.run.value(jobs.leftovers):
            self.run.emit(
                events.Note(self.run.name, f"a job of an earlier run is still at work ({folder}); waiting for it")
            )
            jobs.watch(self.run.transport, folder, 3600, folder, lambda _line: None)
            self.run.store.forget()

    def _walk(
        self, steps: Sequence[Step], preview: Sequence[plan.Planned], announced: frozenset[str], outcome: Outcome
    ) -> None:
        pending = list(steps)
        moving = {one.step.key for one in preview if one.status in ("pending", "unknown")}
        while pending:
            self.run.go_on()
            # Planned as far as the next step that will change something: it forgets what was read for those behind it.
            reach = next((number for number, step in enumerate(pending, 1) if step.key in moving), len(pending))
            planned = self.run.planned(pending[:reach])
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
        self.run.emit(events.StepStarted(self.run.name, one.step.name, one.changes))
        try:
            self._consent(one, announced)
            for number, change in enumerate(one.changes):
                if change.reboot:
                    self._reboot(one.step, change)
                    outcome.rebooted = True
                else:
                    with self.run.uncut(one.step.name):
                        self._run(one.step.name, number, change.commands)
                outcome.done[one.step.key] = (*outcome.done.get(one.step.key, ()), change)
            self.run.store.forget()
            again = self.run.planned([one.step])[0]
            if again.status != "ok":
                left = [f"{change.subject}: {change.before or 'nothing'} -> {change.after}" for change in again.changes]
                found = f"ran, and the host still wants: {'; '.join(left) or again.reason}"
                todo = "look at what the host says, then run it again"
                raise again.error or HostError(one.step.name, found, "nothing left to do", todo)
        except RigwrightError as error:
            self.run.store.forget()
            outcome.steps.append(plan.Planned(one.step, "failed", one.changes, error.found))
            self.run.emit(
                events.StepDone(self.run.name, one.step.name, "failed", str(error), time.monotonic() - started)
            )
            raise
        self.run.emit(events.StepDone(self.run.name, one.step.name, "changed", "", time.monotonic() - started))
        return plan.Planned(one.step, "changed", one.changes)

    def _consent(self, one: plan.Planned, announced: frozenset[str]) -> None:
        disruptive = [change for change in one.changes if change.disruptive]
        leads = any(change.leads_to == "reboot" for change in one.changes)
        if self.run.options.disrupt or not (disruptive or leads):
            return
        if disruptive and one.step.key not in announced:
            raise ConsentError(
                one.step.name,
                f"{disruptive[0].subject} was not announced ({disruptive[0].before})",
                "a yes to it",
                "the same command with --disrupt",
            )
        busy = self.run.busy()
        if busy:
            raise ConsentError(one.step.name, f"GPUs are in use by {busy}", "idle GPUs", "end them, or add --disrupt")

    def _run(self, step: str, number: int, commands: Sequence[Command]) -> None:
        batch: list[Command] = []
        for part, cmd in enumerate(commands):
            if not cmd.long:
                batch.append(cmd)
                continue
            self._run_batch(step, batch)
            batch = []
            say = self._sayer(step)
            result = jobs.run(self.run.transport, self.run.options.run_id, step, number * 10 + part, cmd, say)
            _must(step, cmd, result)
        self._run_batch(step, batch)

    def _sayer(self, step: str) -> Callable[[str], None]:
        return lambda line: self.run.emit(events.OutputLine(self.run.name, step, line))

    def _run_batch(self, step: str, batch: list[Command]) -> None:
        if batch:
            with_lease = [jobs.keep_lease(self.run.options.run_id), *batch]
            for cmd, result in zip(with_lease, self.run.transport.run(with_lease), strict=False):
                _must(step, cmd, result)

    def _reboot(self, step: Step, change: Change) -> None:
        """The host runs again with another boot id, and is what the step wants; it waits for its turn in the fleet."""
        kept = time.monotonic()
        turn = self.run.shared.turn.acquire(blocking=False)
        if not turn:
            self.run.emit(events.Note(self.run.name, "waits for its turn to reboot"))
        while not turn and not self.run.shared.turn.acquire(timeout=1):
            self.run.go_on()
            if time.monotonic() - kept > 60:
                kept = time.monotonic()
                self.run.transport.run([jobs.keep_lease(self.run.options.run_id)])
        back = False
        try:
            self.run.go_on()
            if self.run.shared.lost:
                found = f"{self.run.shared.lost} did not come back from its reboot as it should, so this host was not rebooted"
                todo = f"look at {self.run.shared.lost}; then run the same command again"
                raise HostError(self.run.name, found, "a fleet that comes back", todo)
            before = str(self.run.value(system.boot_id))
            self.run.emit(events.Note(self.run.name, f"rebooting: {change.before}"))
            delay = ("--on-active=1s", "--timer-property=AccuracySec=100ms")
            order = Command(("systemd-run", "--quiet", "--collect", *delay, "systemctl", "reboot"))
            with self.run.uncut(step.name):
                self._run_batch(step.name, [command("sync"), order])
            self.run.rebooting = True
            self._await_boot(before)
            self.run.transport.run([script("timeout 240 systemctl is-system-running --wait || :", timeout_s=250)])
            back = self._settles(step)
            self.run.rebooting = False
        finally:
            if not back and not self.run.shared.stopping.is_set():
                self.run.shared.lost = self.run.shared.lost or self.run.name
            self.run.shared.turn.release()

    def _settles(self, step: Step) -> bool:
        """Whether a step is so within two minutes of a boot: a driver may load after systemd says that it is done."""
        deadline = time.monotonic() + 120
        while True:
            self.run.store.forget()
            if self.run.planned([step])[0].status == "ok":
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(5)

    def _await_boot(self, before: str) -> None:
        started = said = time.monotonic()
        while time.monotonic() - started < self.run.options.reboot_timeout_s:
            time.sleep(1)
            try:
                self.run.transport.connect(10)
                self.run.store.forget()
                if self.run.value(system.boot_id) != before:
                    self.run.emit(events.Note(self.run.name, f"back after {time.monotonic() - started:.0f} s"))
                    return
            except (Unreachable, Unreadable, HostError):
                pass
            if time.monotonic() - said > 30:
                said = time.monotonic()
                self.run.emit(events.Note(self.run.name, f"waiting for it to come back, {said - started:.0f} s so far"))
        found = f"it did not come back within {self.run.options.reboot_timeout_s:g} s of its reboot"
        raise Unreachable(self.run.name, found, "a boot", "look at its console; then run the same command again")


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
