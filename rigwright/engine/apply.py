"""Applies a plan to one host: each step is planned again, changed, and planned once more; the last plan must be
empty."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from rigwright.core.change import Change
from rigwright.core.command import Command, Result, command
from rigwright.core.command_failures import failure_in
from rigwright.core.control_characters import one_line
from rigwright.core.errors import ConsentError, HostError, NoRoot, Rebooting, RigwrightError, Unreachable, unexpected
from rigwright.core.host_templates import SHIPPED
from rigwright.engine import events, jobs, lease, own_programs, run_record
from rigwright.engine.boot import continuation
from rigwright.engine.boot import order as reboot_order
from rigwright.engine.boot.trial import Trials
from rigwright.engine.boot.wait import BootWait, Tried
from rigwright.engine.gpu_use import gpu_users
from rigwright.engine.host_run import HostRun
from rigwright.engine.p2p import required as owed_test
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import Step
from rigwright.engine.report import ApplyResult
from rigwright.facts import system
from rigwright.facts.boot import trial as trial_facts
from rigwright.facts.boot.continuation import UNIT_NAME
from rigwright.facts.own_programs import at_work
from rigwright.operations.trial import taken_away


def apply(
    run: HostRun, steps: Sequence[Step], preview: Sequence[PlannedStep], trials: Trials | None = None, tried: str = ""
) -> ApplyResult:
    """Applies the steps in order, under the host's lease; `preview` is the plan that the user has seen.

    The result's `error` says what stopped it; the steps after that are as they were in the preview. `trials`: a new
    boot is tried once, where the host can do that; None: it is not. `tried`: the change of a `try` on which somebody
    decides later.
    """
    return _Application(run, steps, preview, trials, tried).run_all()


def tidy(run: HostRun) -> None:
    """Removes what a run of this machine left that was cut after its last change: its lease, and files that are half
    written.

    For a host that needs no change, on which no lease is taken. Nothing is removed while another run holds the host.
    """
    if run.host.is_this_machine and not continuation.continues() and continuation.state(run) is not None:
        run.transport.run([continuation.cleared()])
    left = run.store.known.get(lease.holder)
    host, mine, earlier = run.host.name, run.options.run_id, run.options.earlier_runs
    if isinstance(left, str) and lease.is_left(left, host, earlier):
        with contextlib.suppress(HostError):
            lease.take(run.transport, host, mine, earlier).release()


class _Application:
    """The application of steps to one host. `ended`: the steps that ended; `done`: their changes by Step.key."""

    def __init__(
        self, run: HostRun, steps: Sequence[Step], preview: Sequence[PlannedStep], trials: Trials | None, tried: str
    ) -> None:
        self.run, self.steps, self.preview, self.trials, self.tried = run, steps, preview, trials, tried
        self.reboot = next((step for step in steps if step.declared.reboots and not step.skipped), None)
        # The steps whose disruption the preview showed: their own, or a reboot that an earlier change leads to.
        leads = any(change.leads_to == "reboot" for step in preview for change in step.changes)
        self.announced = {
            step.step.key
            for step in preview
            if any(change.disruptive for change in step.changes) or (leads and step.step.declared.reboots)
        }
        if run.options.announced is not None:
            names = run.options.announced.get(run.host.name, ())
            self.announced = {step.key for step in steps if step.name in names}
        self.ended: list[PlannedStep] = []
        self.done: dict[str, tuple[Change, ...]] = {}
        self.rebooted = self.recorded = False

    def run_all(self) -> ApplyResult:
        failure: RigwrightError | None = None
        try:
            if self.run.host.is_this_machine:
                continuation.require_identified(self.run)
                if self.reboot is not None:
                    changes = [change for step in self.preview for change in step.changes]
                    due = any(change.reboot or change.leads_to == "reboot" for change in changes)
                    continuation.require_possible(self.run, due)
            options = self.run.options
            self.lease = lease.take(self.run.transport, self.run.host.name, options.run_id, options.earlier_runs)
            try:
                self._await_leftover_jobs()
                if self.run.host.is_this_machine:
                    self._begin_here()
                self._settle_trial()
                self.run.store.forget()  # another run may have changed the host between the preview and the lease
                self._walk()
                self._end_trial()
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is the one to report
                    self.lease.release()
                raise
            self.lease.release(run_record.done())
        except BaseException as error:  # also a bug: what was done before it must be in the result
            failure = error if isinstance(error, RigwrightError) else unexpected(self.run.host.name, error)
            if self._tries and not isinstance(error, Rebooting):
                self._note("a reboot starts what ran before this run, until provision has tried a new boot")
        keys = {step.step.key for step in self.ended}
        steps = (*self.ended, *(step for step in self.preview if step.step.key not in keys))
        return ApplyResult(steps, self.done, failure, self.rebooted)

    def _await_leftover_jobs(self) -> None:
        self.run.store.known.pop(at_work, None)
        for job in jobs.leftovers(self.run.value(at_work)):
            self._note(f"waits for {own_programs.in_words(job)}")
            sink, folder = self.run.output_sink(job.name), jobs.folder_of(job)
            jobs.watch(self.run.transport, folder, 3600, job.name, sink, owner=self.lease.owner)
            self.run.store.forget()

    def _walk(self) -> None:
        pending = list(self.steps)
        changing = {step.step.key for step in self.preview if step.status in ("pending", "unknown")}
        while pending:
            self.run.raise_if_stopped()
            # Plans only up to the next step that will change something: that change forgets the facts of later steps.
            reach = next((number for number, step in enumerate(pending, 1) if step.key in changing), len(pending))
            taken = 0
            for planned in self.run.planned(pending[:reach]):
                taken += 1
                if planned.status == "pending":
                    self._apply_step(planned)
                    break
                self.ended.append(planned)
                if planned.status in ("failed", "unknown"):
                    raise planned.error or HostError(planned.step.name, planned.reason)
            pending = pending[taken:]

    def _apply_step(self, planned: PlannedStep) -> None:
        """Makes the changes of a step, and proves them with a second plan. How it ended is recorded before anything
        else happens; a step that was stopped before its first change stays as it was in the preview."""
        step, started = planned.step, time.monotonic()
        host, begun = self.run.host.name, False
        self.run.emit(events.StepStarted(host, step.name, planned.changes))
        try:
            self._require_consent(planned)
            # In the same script as the first change, and before it: no interruption can make the change without it.
            first = run_record.before(step.name, planned.changes, first=not self.recorded, tried=self.tried)
            if step.declared.affects_p2p:
                first = (
                    *first,
                    owed_test.owing(self.run.options.run_id, planned.changes, single=step.declared.affects_gpus),
                )
            self.recorded = True
            if self.trials and self.reboot and any(change.leads_to == "reboot" for change in planned.changes):
                first = (*first, *self.trials.keep(self._replaced_modules()))
            for number, change in enumerate(planned.changes):
                if change.reboot:
                    self._reboot(step, change, first)
                else:
                    with self.run.critical_section(step.name):
                        begun = True
                        self._run_commands(step.name, number, (*first, *change.commands))
                first = ()
                self.done[step.key] = (*self.done.get(step.key, ()), change)
            self.run.store.forget()
            again = self.run.planned([step])[0]
            if again.status != "ok":
                left = [f"{change.subject}: {change.before or 'nothing'} -> {change.after}" for change in again.changes]
                found = f"ran, and the host still wants: {'; '.join(left) or again.reason}"
                fix = "look at what the host says, then run it again"
                raise again.error or HostError(step.name, found, "nothing left to do", fix)
        except Rebooting:
            raise
        except BaseException as error:
            self.run.store.forget()
            if isinstance(error, Unreachable):
                error.found += f"; it was at the step '{step.name}'"
            reason = error.found if isinstance(error, RigwrightError) else f"{type(error).__name__}: {error}"
            if begun or not self.run.state.stopping.is_set():
                self.ended.append(PlannedStep(step, "failed", planned.changes, reason))
            self.run.emit(events.StepDone(host, step.name, "failed", str(error), time.monotonic() - started))
            raise
        self.ended.append(PlannedStep(step, "changed", planned.changes))
        self.run.emit(events.StepDone(host, step.name, "changed", "", time.monotonic() - started))

    def _require_consent(self, planned: PlannedStep) -> None:
        """Raises ConsentError for a disruptive change that the preview did not show, or while processes use the
        GPUs."""
        name, disruptive = planned.step.name, [change for change in planned.changes if change.disruptive]
        reboots = any(change.leads_to == "reboot" for change in planned.changes)
        if self.run.options.disrupt or not (disruptive or reboots):
            return
        if disruptive and planned.step.key not in self.announced:
            found = f"{disruptive[0].subject} was not announced ({disruptive[0].before})"
            raise ConsentError(name, found, "a yes to it", "the same command with --disrupt")
        users = gpu_users(self.run)
        if users:
            fix = "wait for their end, or end them; or add --disrupt"
            raise ConsentError(name, f"GPUs are in use by {users}", "idle GPUs", fix)

    def _run_commands(self, step: str, number: int, commands: Sequence[Command]) -> None:
        batch: list[Command] = []
        for part, cmd in enumerate(commands):
            if not cmd.long:
                batch.append(cmd)
                continue
            self._run_batch(step, batch)
            batch = []
            owner, on_line = self.lease.owner, self.run.output_sink(step)
            result = jobs.run(self.run.transport, owner, step, number * 10 + part, cmd, on_line)
            _require_success(step, cmd, result)
        self._run_batch(step, batch)

    def _run_batch(self, step: str, batch: list[Command], then_s: float = 0) -> None:
        """Runs commands while this run holds the lease, which lasts longer than all of them can take, and `then_s`
        seconds more."""
        if batch:
            limit_s = sum(cmd.timeout_s + 6 for cmd in batch) + then_s
            renewed, *results = self.run.transport.run([self.lease.renewal(limit_s), *batch])
            self.lease.require(renewed)
            for cmd, result in zip(batch, results, strict=False):
                _require_success(step, cmd, result)

    def _replaced_modules(self) -> tuple[str, ...]:
        """The kernel modules that the steps of this run replace which the preview did not show as done."""
        left = [step for step in self.preview if step.status in ("pending", "unknown")]
        return tuple(dict.fromkeys(module for step in left for module in step.step.declared.modules))

    def _begin_here(self) -> None:
        """On this machine: removes what an earlier continuation told. After its reboot: records a reboot that did not
        help."""
        if not continuation.continues():
            self._work((continuation.cleared(),))
            return
        last = continuation.state(self.run)
        self._note("goes on after the reboot of this machine")
        trial = self.trials.state() if self.trials else None
        if last is None or self.reboot is None or trial is not None or self._becomes_ok(self.reboot):
            return
        for change in self.run.planned([self.reboot])[0].changes:
            if change.reboot and one_line(change.before)[:600] == last.why:
                self._run_batch(self.reboot.name, list(change.in_vain))

    def _settle_trial(self) -> None:
        """Ends what an earlier run left of a trial: judges a boot that is one, and reports one from which the host has
        come back."""
        if self.trials is None or self.reboot is None:
            return
        trial = self.trials.state()
        if trial is None or trial.stage == "prepared":
            return
        if trial.stage == "running":
            self._note(f"this boot is the trial of run {trial.run}, which ended before it was judged")
            self._judge_trial(self.reboot, 900, self._wait("", 900, trial.run))
        elif trial.stage == "permanent":
            self._note(f"the boot that run {trial.run} tried is permanent; what it left is removed")
            self.trials.finish(self._work)
        elif trial.stage == "left":
            self._work(taken_away())
        elif trial.stage == "armed":
            self._note(f"run {trial.run} ended before its reboot; the trial is prepared again")
            self._work((command("grub-editenv", "/boot/grub/grubenv", "unset", "next_entry"),))
        elif continuation.continues():
            self._judge_trial(self.reboot, 900, self._wait("", 900, trial.run))
        else:
            reason = self.trials.close(trial, (), self._work)
            self._note(f"the host has come back from the trial of run {trial.run}: {reason.text}")
            self._note_said(reason.said)

    def _end_trial(self) -> None:
        """Takes away what was kept for a trial that turned out not to be needed: the host needs no reboot.

        It stays where an earlier trial failed and nothing has corrected that yet.
        """
        if self.trials is None or self.reboot is None or (self.rebooted and not self.trials.kept):
            return
        trial = self.run.value(trial_facts.trial)
        if trial is None:
            return
        if self.trials.is_needed(trial):
            host = self.run.host.name
            self._note(
                f"what ran before stays the default, because another boot was not healthy; invoke rollback --host {host}"
            )
        else:
            self._work(taken_away())

    def _judge_trial(self, step: Step, reboot_s: int, wait: BootWait, seen: tuple[str, ...] = ()) -> None:
        """Confirms this boot if it is a trial and healthy. Raises HostError when it was not, with the host as it was
        before.

        `seen`: what kept the controller out of the trial. `wait`: makes the connection again that is lost while the
        boot is judged.
        """
        assert self.trials
        trial, why, seen = self._judged(step, wait, seen)
        if trial is not None and trial.stage == "running":
            if not why:
                with self.run.critical_section(step.name):
                    warning = self.trials.confirm(trial, self._work)
                self._note("the new boot is healthy; it is permanent now")
                if warning:
                    self._note(warning)
                self.run.store.forget()
                return
            self._note(f"the new boot is not healthy: {'; '.join(why)}; the host goes back")
            before = str(self.run.value(system.boot_id))
            wait = self._wait(before, reboot_s + self.trials.reboot.confirm_within_s)
            # Where the connection is lost before the order, the host goes back by itself.
            with self.run.critical_section(step.name), contextlib.suppress(Unreachable, NoRoot):
                self._order_reboot(step, [self.trials.give_up()], before, wait.limit_s, "; ".join(why))
            wait.until_up(_UP_S)
            reboot_order.forget(self.run.host)
            trial = self.trials.state()
        if trial is None:
            found = "the record of the trial is gone, so nothing says whether this boot is the new one"
            raise HostError(step.name, found, f"the record in {trial_facts.FOLDER}", "invoke verify")
        reason = self.trials.close(trial, why, self._work, seen)
        self._note_said(reason.said)
        left = self.trials.state()
        found = f"the new boot was tried, and the host went back to what ran before: {reason.text}"
        if left is None:
            fix = "correct kernel_cmdline in the inventory; the next provision tries it again"
        else:
            fix = f"invoke rollback --host {self.run.host.name} takes the packages back; until then it boots what ran before"
        raise HostError(step.name, found, "a healthy boot", fix)

    def _judged(
        self, step: Step, wait: BootWait, seen: tuple[str, ...]
    ) -> tuple[trial_facts.Trial | None, tuple[str, ...], tuple[str, ...]]:
        """The trial; why this boot, which is a trial, is not healthy; what kept the controller out of a trial that has
        ended."""
        assert self.trials
        while True:
            try:
                trial = self.trials.state()
                if trial is None or trial.stage != "running":
                    return trial, (), seen
                self._becomes_ok(step, min(120.0, self.trials.judged_within_s / 2))
                return trial, self.trials.reasons(trial, step), ()
            except (Unreachable, NoRoot) as error:
                seen = wait.again(error, self.trials.judged_within_s)

    def _wait(self, before: str, reboot_s: int, trial: str = "") -> BootWait:
        """A wait for another boot than `before`, which may take `reboot_s` seconds. `trial`: the run that tries it
        once, "" for none."""
        if not self.trials or not trial:
            return BootWait(self.run, self.lease, before, reboot_s)
        tried = Tried(trial, self.trials.reboot.confirm_within_s, reboot_s)
        return BootWait(self.run, self.lease, before, tried.limit_s, tried)

    def _note_said(self, lines: Sequence[str]) -> None:
        """Notes the last lines of a trial's journal or kernel, each once."""
        for line in dict.fromkeys(lines):
            self._note(f"said in the trial: {line}")

    def _work(self, commands: Sequence[Command]) -> None:
        self._run_commands("Reboot", 9, commands)

    def _note(self, text: str) -> None:
        self.run.emit(events.Note(self.run.host.name, text))

    def _reboot(self, step: Step, change: Change, first: Sequence[Command]) -> None:
        """Reboots the host, once a reboot slot is free, and waits until it runs with another boot id and the step is
        ok.

        The commands `first` run before it.

        Raises HostError when another host of the run did not come back, Unreachable when this one does not.
        """
        state, host = self.run.state, self.run.host.name
        self._await_reboot_slot()
        back = False
        try:
            self.run.raise_if_stopped()
            if state.lost:
                found = f"{state.lost} did not come back from its reboot as it should, so this host was not rebooted"
                fix = f"look at {state.lost}; then run the same command again"
                raise HostError(host, found, "a fleet that comes back", fix)
            before = str(self.run.value(system.boot_id))
            up_s = _UP_S
            # A prepared trial that was not booted yet stays prepared; a trial of this run has ended with its reboot.
            trial = self.trials is not None and not (change.same_boot and (self.rebooted or not self._tries))
            with self.run.critical_section(step.name):
                if self.trials and trial:
                    self._run_batch(step.name, [*first, *self.trials.keep(self._replaced_modules())])
                    self._run_batch(step.name, list(self.trials.arm(change.gpus_after)))
                    first = ()
                    up_s = self.trials.judged_within_s if self._tries else up_s
                trial = trial and self._tries
                self._note(f"rebooting{', to try the new boot' if trial else ''}: {change.before}")
                wait = self._wait(before, change.reboot_timeout_s, self.run.options.run_id if trial else "")
                self._order_reboot(step, [*first, *change.commands], before, wait.limit_s, change.before)
            self.run.rebooting = self.rebooted = True
            seen = wait.until_up(up_s)
            reboot_order.forget(self.run.host)
            self.run.rebooting = False
            if trial:
                self._judge_trial(step, change.reboot_timeout_s, wait, seen)
            back = self._becomes_ok(step)
            if not back:
                self._run_batch(step.name, list(change.in_vain))
        finally:
            if not back and not state.stopping.is_set():
                state.lost = state.lost or host
            state.reboot_slots.release()

    def _order_reboot(self, step: Step, first: Sequence[Command], boot: str, limit_s: int, why: str) -> None:
        """Runs commands and reboots the host with that boot id, which should answer again within that time.

        This machine goes on after the reboot: raises Rebooting.
        """
        run_id = self.run.options.run_id
        here = self.run.host.is_this_machine
        if here:
            wait_s = min(240.0, self.trials.reboot.confirm_within_s / 3) if self.trials else 240.0
            templates = self.trials.templates if self.trials else SHIPPED
            first = (*first, *continuation.armed(self.run, templates, why, wait_s))
        reboot_order.record(self.run.host, run_id, boot, min(limit_s, reboot_order.LONGEST_S - 60))
        delay_s = continuation.DELAY_S if here else reboot_order.DELAY_S
        self._run_batch(step.name, [*first, command("sync"), reboot_order.order(run_id, delay_s)], limit_s)
        if here:
            found = f"this machine reboots in {delay_s} s, and then goes on by itself"
            fix = f"wait; the next login and invoke plan say how it ended (sudo journalctl -fu {UNIT_NAME})"
            raise Rebooting(self.run.host.name, found, "", fix)

    def _await_reboot_slot(self) -> None:
        """Takes a reboot slot; renews the lease while it waits for one. Raises Interrupted."""
        slots = self.run.state.reboot_slots
        if slots.acquire(blocking=False):
            return
        renewed = time.monotonic()
        self._note("waits for its turn to reboot")
        while not slots.acquire(timeout=1):
            self.run.raise_if_stopped()
            if time.monotonic() - renewed > 60:
                renewed = time.monotonic()
                self.lease.renew()

    @property
    def _tries(self) -> bool:
        return self.trials is not None and self.trials.kept

    def _becomes_ok(self, step: Step, within_s: float = 120) -> bool:
        """Whether a step is ok within that time of a boot: a driver may load after systemd reports that the boot is
        complete."""
        deadline = time.monotonic() + within_s
        while True:
            self.run.store.forget()
            if self.run.planned([step])[0].status == "ok":
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(5)
            self.lease.renew()


_UP_S = 240.0
"""So long the start of systemd is awaited after a boot that stays."""


def _require_success(step: str, cmd: Command, result: Result) -> None:
    """Raises HostError with the cause of a failed command if its output tells one, otherwise with the last line."""
    if result.code == 0:
        return
    text = result.error_text or result.text.strip()
    if failure := failure_in(text):
        raise HostError(step, failure.found, fix=f"{failure.fix}; then run the same command again")
    lines = text.splitlines() or ["nothing"]
    fix = "correct the cause, then run the same command again"
    for line in reversed(lines):
        if line.startswith("E: "):  # of apt
            raise HostError(step, line.removeprefix("E: "), fix=fix)
    outcome = "ran past its limit" if result.code in (124, 137) else f"failed (exit {result.code})"
    shown = str(cmd)[:120] if cmd.argv[0] != "sh" else "its script"
    raise HostError(step, f"{shown} {outcome}: {lines[-1]}", "an exit of 0", fix)
