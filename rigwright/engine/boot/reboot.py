"""The reboots of a host in a run: the order, the wait for the boot, and the judgement of a boot that is tried once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from rigwright.core.change import Change
from rigwright.core.command import Command, command
from rigwright.core.control_characters import one_line
from rigwright.core.errors import HostError, NoRoot, Rebooting, Unreachable
from rigwright.engine import leased_commands
from rigwright.engine.boot import continuation, order as reboot_order
from rigwright.engine.boot.trial import Trials
from rigwright.engine.boot.wait import UP_S, BootWait, Tried
from rigwright.engine.host_run import HostRun
from rigwright.engine.lease import Lease
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import Step
from rigwright.facts import system
from rigwright.facts.boot import trial as trial_facts
from rigwright.facts.boot.continuation import UNIT_NAME
from rigwright.operations.trial import taken_away

READY_S, LOOK_EVERY_S = 120.0, 5.0
"""The longest wait, after that, until a step is ok: a driver may load after systemd reports that the boot is
complete."""
LEFT_TRIAL_BOOT_S = 900
"""How long a boot may take in a trial that an earlier run began."""
SLOT_RENEWS_S = 60.0
"""A host that waits for a reboot slot renews its lease so often."""


class Reboots:
    """The reboots of one host in a run that holds its lease.

    `rebooted`: whether the host was rebooted.
    """

    def __init__(
        self, run: HostRun, held: Lease, steps: Sequence[Step], preview: Sequence[PlannedStep], trials: Trials
    ) -> None:
        self.run, self.held, self.trials = run, held, trials
        self.step = next((step for step in steps if step.declared.reboots and not step.skipped), None)
        """The first step that may reboot the host."""
        due = [step.step for step in preview if step.status in ("pending", "unknown")]
        self.modules = tuple(dict.fromkeys(module for step in due for module in step.declared.modules))
        """The kernel modules that the steps of this run replace which the preview did not show as done."""
        self.rebooted = False

    def keep(self) -> tuple[Command, ...]:
        """The commands that keep what runs now, before a change that leads to a reboot; () where no boot is tried."""
        return self.trials.keep(self.modules) if self.step else ()

    def begin_here(self) -> None:
        """On this machine: removes what an earlier continuation left. After its reboot: records a reboot that did not
        help."""
        if not continuation.continues():
            self._work((continuation.clear(),))
            return
        last = continuation.state(self.run)
        self.run.note("goes on after the reboot of this machine")
        if last is None or self.step is None or self.trials.state() or self._becomes_ok(self.step):
            return
        for change in self.run.planned([self.step])[0].changes:
            if change.reboot and one_line(change.before)[:600] == last.why:
                leased_commands.run_batch(self.held, self.step.name, change.in_vain)

    def settle_trial(self) -> None:
        """Ends what an earlier run left of a trial: judges this boot if it is the trial, and reports a trial from which
        the host has come back."""
        if self.step is None:
            return
        trial = self.trials.state()
        if trial is None or trial.stage == "prepared":
            return
        if trial.stage == "running":
            self.run.note(f"this boot is the trial of run {trial.run}, which ended before it was judged")
            self._judge_trial(self.step, LEFT_TRIAL_BOOT_S, self._wait("", LEFT_TRIAL_BOOT_S, trial.run))
        elif trial.stage == "permanent":
            self.run.note(f"the boot that run {trial.run} tried is permanent; what it left is removed")
            self.trials.finish(self._work)
        elif trial.stage == "left":
            self._work(taken_away())
        elif trial.stage == "armed":
            self.run.note(f"run {trial.run} ended before its reboot; the trial is prepared again")
            self._work((command("grub-editenv", "/boot/grub/grubenv", "unset", "next_entry"),))
        elif continuation.continues():
            self._judge_trial(self.step, LEFT_TRIAL_BOOT_S, self._wait("", LEFT_TRIAL_BOOT_S, trial.run))
        else:
            reason = self.trials.close(trial, (), self._work)
            self.run.note(f"the host has come back from the trial of run {trial.run}: {reason.text}")
            self._note_log(reason.said)

    def end_trial(self) -> None:
        """Takes away what was kept for a trial that turned out not to be needed: the host needs no reboot.

        It stays where an earlier trial failed and nothing has corrected that yet.
        """
        if self.step is None or (self.rebooted and not self.trials.kept):
            return
        trial = self.run.value(trial_facts.trial)
        if trial is None:
            return
        if self.trials.is_needed(trial):
            fix = f"invoke rollback --host {self.run.host.name}"
            self.run.note(f"what ran before stays the default, because another boot was not healthy; {fix}")
        else:
            self._work(taken_away())

    def reboot(self, step: Step, change: Change, first: Sequence[Command]) -> None:
        """Reboots the host, once a reboot slot is free, and waits until it runs with another boot id and the step is
        ok. The commands `first` run before it.

        Raises HostError when another host of the run did not come back, Unreachable when this one does not.
        """
        state, host = self.run.state, self.run.host.name
        self._await_reboot_slot()
        back = False
        try:
            self.run.raise_if_stopped()
            if state.lost:
                problem = f"{state.lost} did not come back from its reboot as it should, so this host was not rebooted"
                fix = f"look at {state.lost}; then run the same command again"
                raise HostError(host, problem, "a fleet that comes back", fix)
            before = str(self.run.value(system.boot_id))
            up_s = UP_S
            # A prepared trial that was not booted yet stays prepared; a trial of this run has ended with its reboot.
            trial = not (change.same_boot and (self.rebooted or not self.trials.kept))
            with self.run.critical_section(step.name):
                if trial:
                    leased_commands.run_batch(self.held, step.name, [*first, *self.trials.keep(self.modules)])
                    leased_commands.run_batch(self.held, step.name, self.trials.arm(change.gpus_after))
                    first = ()
                    up_s = self.trials.judged_within_s if self.trials.kept else up_s
                trial = trial and self.trials.kept
                self.run.note(f"rebooting{', to try the new boot' if trial else ''}: {change.before}")
                wait = self._wait(before, change.reboot_timeout_s, self.run.options.run_id if trial else "")
                self._order_reboot(step, [*first, *change.commands], before, wait.limit_s, change.before)
            self.run.rebooting = self.rebooted = True
            kept_out = wait.until_up(up_s)
            reboot_order.forget(self.run.host)
            self.run.rebooting = False
            if trial:
                self._judge_trial(step, change.reboot_timeout_s, wait, kept_out)
            back = self._becomes_ok(step)
            if not back:
                leased_commands.run_batch(self.held, step.name, change.in_vain)
        finally:
            if not back and not state.stopping.is_set():
                state.lost = state.lost or host
            state.reboot_slots.release()

    def _await_reboot_slot(self) -> None:
        """Takes a reboot slot; renews the lease while it waits for one. Raises Interrupted."""
        slots = self.run.state.reboot_slots
        if slots.acquire(blocking=False):
            return
        renewed = time.monotonic()
        self.run.note("waits for its turn to reboot")
        while not slots.acquire(timeout=1):
            self.run.raise_if_stopped()
            if time.monotonic() - renewed > SLOT_RENEWS_S:
                renewed = time.monotonic()
                self.held.renew()

    def _order_reboot(self, step: Step, first: Sequence[Command], boot: str, limit_s: int, why: str) -> None:
        """Runs commands and reboots the host with that boot id, which should answer again within that time.

        This machine goes on after the reboot: raises Rebooting.
        """
        run_id = self.run.options.run_id
        here = self.run.host.is_this_machine
        if here:
            wait_s = min(UP_S, self.trials.reboot.confirm_within_s / 3)
            first = (*first, *continuation.arm(self.run, self.trials.templates, why, wait_s))
        reboot_order.record(self.run.host, run_id, boot, min(limit_s, reboot_order.LONGEST_S - 60))
        delay_s = continuation.DELAY_S if here else reboot_order.DELAY_S
        commands = [*first, command("sync"), reboot_order.order(run_id, delay_s)]
        leased_commands.run_batch(self.held, step.name, commands, limit_s)
        if here:
            problem = f"this machine reboots in {delay_s} s, and then goes on by itself"
            fix = f"wait; the next login and invoke plan say how it ended (sudo journalctl -fu {UNIT_NAME})"
            raise Rebooting(self.run.host.name, problem, "", fix)

    def _judge_trial(self, step: Step, boot_s: int, wait: BootWait, kept_out: tuple[str, ...] = ()) -> None:
        """Confirms this boot if it is a trial and healthy. Raises HostError when it was not, with the host as it was
        before.

        `boot_s`: how long a boot may take. `kept_out`: what kept the controller out of the trial. `wait`: makes the
        connection again that is lost while the boot is judged.
        """
        trial, why, kept_out = self._judgement(step, wait, kept_out)
        if trial is not None and trial.stage == "running":
            if not why:
                with self.run.critical_section(step.name):
                    warning = self.trials.confirm(trial, self._work)
                self.run.note("the new boot is healthy; it is permanent now")
                if warning:
                    self.run.note(warning)
                self.run.store.forget()
                return
            self.run.note(f"the new boot is not healthy: {'; '.join(why)}; the host goes back")
            before = str(self.run.value(system.boot_id))
            wait = self._wait(before, boot_s + self.trials.reboot.confirm_within_s)
            # Where the connection is lost before the order, the host goes back by itself.
            with self.run.critical_section(step.name), contextlib.suppress(Unreachable, NoRoot):
                self._order_reboot(step, [self.trials.give_up()], before, wait.limit_s, "; ".join(why))
            wait.until_up(UP_S)
            reboot_order.forget(self.run.host)
            trial = self.trials.state()
        if trial is None:
            problem = "the record of the trial is gone, so nothing says whether this boot is the new one"
            raise HostError(step.name, problem, f"the record in {trial_facts.FOLDER}", "invoke verify")
        reason = self.trials.close(trial, why, self._work, kept_out)
        self._note_log(reason.said)
        problem = f"the new boot was tried, and the host went back to what ran before: {reason.text}"
        fix = (
            f"invoke rollback --host {self.run.host.name} takes the packages back; until then it boots what ran before"
        )
        if self.trials.state() is None:
            fix = "correct kernel_cmdline in the inventory; the next provision tries it again"
        raise HostError(step.name, problem, "a healthy boot", fix)

    def _judgement(
        self, step: Step, wait: BootWait, kept_out: tuple[str, ...]
    ) -> tuple[trial_facts.Trial | None, tuple[str, ...], tuple[str, ...]]:
        """The trial; why this boot, which is a trial, is not healthy; what kept the controller out of a trial that has
        ended."""
        while True:
            try:
                trial = self.trials.state()
                if trial is None or trial.stage != "running":
                    return trial, (), kept_out
                self._becomes_ok(step, min(READY_S, self.trials.judged_within_s / 2))
                return trial, self.trials.reasons(trial, step), ()
            except (Unreachable, NoRoot) as error:
                kept_out = wait.again(error, self.trials.judged_within_s)

    def _wait(self, before: str, boot_s: int, trial: str = "") -> BootWait:
        """A wait for another boot than `before`, which may take `boot_s` seconds. `trial`: the run that tries it once,
        "" for a boot that stays."""
        if not trial:
            return BootWait(self.run, self.held, before, boot_s)
        tried = Tried(trial, self.trials.reboot.confirm_within_s, boot_s)
        return BootWait(self.run, self.held, before, tried.limit_s, tried)

    def _becomes_ok(self, step: Step, within_s: float = READY_S) -> bool:
        """Whether a step is ok within that time."""
        deadline = time.monotonic() + within_s
        while True:
            self.run.store.forget()
            if self.run.planned([step])[0].status == "ok":
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_EVERY_S)
            self.held.renew()

    def _work(self, commands: Sequence[Command]) -> None:
        leased_commands.run(self.held, "Reboot", 9, commands, self.run.output_sink("Reboot"))

    def _note_log(self, lines: Sequence[str]) -> None:
        """Notes the last lines of a trial's journal or kernel, each once."""
        for line in dict.fromkeys(lines):
            self.run.note(f"said in the trial: {line}")
