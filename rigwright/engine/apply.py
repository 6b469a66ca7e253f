"""Applies a plan to one host: each step is planned again, changed, and planned once more; the last plan must be
empty."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from rigwright.core.change import Change
from rigwright.core.command import Command
from rigwright.core.errors import ConsentError, HostError, Rebooting, RigwrightError, Unreachable, unexpected
from rigwright.engine import events, jobs, lease, leased_commands, own_programs, run_record
from rigwright.engine.boot import continuation
from rigwright.engine.boot.reboot import Reboots
from rigwright.engine.boot.trial import Trials
from rigwright.engine.gpu_use import gpu_users
from rigwright.engine.host_run import HostRun
from rigwright.engine.p2p import required
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import Step
from rigwright.engine.report import ApplyResult
from rigwright.facts.own_programs import at_work

JOB_LEFT_S = 3600
"""The seconds within which a job of an earlier run has to end."""


def apply(run: HostRun, preview: Sequence[PlannedStep], tried: str = "") -> ApplyResult:
    """Applies the steps of its playbook in order, under the host's lease; `preview` is the plan that the user has seen.

    A new boot is tried once, where the host can do that. The result's `error` says what stopped the run; the steps
    after that are as they were in the preview. `tried`: the change of a `try` on which somebody decides later.
    """
    bound = run.bound
    ended: list[PlannedStep] = []
    done: dict[str, tuple[Change, ...]] = {}
    reboots: Reboots | None = None
    failure: RigwrightError | None = None
    try:
        if run.host.is_this_machine:
            _require_continuation(run, bound.steps, preview)
        held = lease.take(run.transport, run.host.name, run.options.run_id, run.options.earlier_runs)
        try:
            trials = Trials(run, bound.desired.reboot, bound.templates)
            reboots = Reboots(run, held, bound.steps, preview, trials)
            _await_leftover_jobs(run, held)
            if run.host.is_this_machine:
                reboots.begin_here()
            reboots.settle_trial()
            run.store.forget()  # another run may have changed the host between the preview and the lease
            for key, step, changes in _Application(run, held, reboots, preview, tried).walk(bound.steps):
                ended += [step] if step else []
                done.update({key: changes} if changes else {})
            reboots.end_trial()
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to report
                held.release()
            raise
        held.release(run_record.done())
    except BaseException as error:  # also a bug: what was done before it must be in the result
        failure = error if isinstance(error, RigwrightError) else unexpected(run.host.name, error)
        if reboots and reboots.trials.kept and not isinstance(error, Rebooting):
            run.note("a reboot starts what ran before this run, until provision has tried a new boot")
    keys = {step.step.key for step in ended}
    whole = (*ended, *(step for step in preview if step.step.key not in keys))
    return ApplyResult(whole, done, failure, reboots is not None and reboots.rebooted)


def tidy(run: HostRun) -> None:
    """Removes what a run of this machine left that was killed after its last change: its lease, and files that are half
    written.

    For a host that needs no change, on which no lease is taken. Nothing is removed while another run holds the host.
    """
    if run.host.is_this_machine and not continuation.continues() and continuation.state(run) is not None:
        run.transport.run([continuation.clear()])
    holder = run.store.known.get(lease.holder)
    host, mine, earlier = run.host.name, run.options.run_id, run.options.earlier_runs
    if isinstance(holder, str) and lease.is_left(holder, host, earlier):
        with contextlib.suppress(HostError):
            lease.take(run.transport, host, mine, earlier).release()


def _require_continuation(run: HostRun, steps: Sequence[Step], preview: Sequence[PlannedStep]) -> None:
    """Raises HostError when this machine is not the one of the inventory, or when the command cannot go on after a
    reboot."""
    continuation.require_identified(run)
    if any(step.declared.reboots and not step.skipped for step in steps):
        changes = [change for step in preview for change in step.changes]
        due = any(change.reboot or change.leads_to == "reboot" for change in changes)
        continuation.require_possible(run, due)


def _await_leftover_jobs(run: HostRun, held: lease.Lease) -> None:
    """Waits for the jobs of earlier runs. Raises HostError, Unreachable."""
    run.store.known.pop(at_work, None)
    for job in jobs.leftovers(run.value(at_work)):
        run.note(f"waits for {own_programs.in_words(job)}")
        sink = run.output_sink(job.name)
        jobs.watch(run.transport, jobs.folder_of(job), JOB_LEFT_S, job.name, sink, owner=held.owner)
        run.store.forget()


_Outcome = tuple[str, "PlannedStep | None", tuple[Change, ...]]
"""The key of a step; how it ended, None for a step that stays as in the preview; and the changes that were made."""


class _Application:
    """The application of steps to one host under its lease."""

    def __init__(
        self, run: HostRun, held: lease.Lease, reboots: Reboots, preview: Sequence[PlannedStep], tried: str
    ) -> None:
        self.run, self.held, self.reboots, self.preview, self.tried = run, held, reboots, preview, tried
        self.recorded = False
        """Whether what was on the host before this run is recorded there."""

    def walk(self, steps: Sequence[Step]) -> Iterator[_Outcome]:
        """Applies the steps; yields each that has ended, also the one that failed before its error is raised."""
        pending = list(steps)
        changing = {step.step.key for step in self.preview if step.status in ("pending", "unknown")}
        announced = self._announced_keys(steps)
        while pending:
            self.run.raise_if_stopped()
            # Plans only up to the next step that will change something: that change forgets the facts of later steps.
            reach = next((number for number, step in enumerate(pending, 1) if step.key in changing), len(pending))
            taken = 0
            for planned in self.run.planned(pending[:reach]):
                taken += 1
                if planned.status == "pending":
                    yield from self._apply_step(planned, planned.step.key in announced)
                    break
                yield planned.step.key, planned, ()
                if planned.status in ("failed", "unknown"):
                    raise planned.error or HostError(planned.step.name, planned.reason)
            pending = pending[taken:]

    def _announced_keys(self, steps: Sequence[Step]) -> set[str]:
        """The keys of the steps whose disruption a person was shown: their own, or a reboot that an earlier change
        leads to."""
        if self.run.options.announced is not None:
            names = self.run.options.announced.get(self.run.host.name, ())
            return {step.key for step in steps if step.name in names}
        leads = any(change.leads_to == "reboot" for step in self.preview for change in step.changes)
        return {
            step.step.key
            for step in self.preview
            if any(change.disruptive for change in step.changes) or (leads and step.step.declared.reboots)
        }

    def _apply_step(self, planned: PlannedStep, announced: bool) -> Iterator[_Outcome]:
        """Makes the changes of a step, and proves them with a second plan. How it ended is yielded before anything
        else happens; a step that was stopped before its first change stays as it was in the preview."""
        step, started, host = planned.step, time.monotonic(), self.run.host.name
        done: list[Change] = []
        begun = False
        self.run.emit(events.StepStarted(host, step.name, planned.changes))
        try:
            self._require_consent(planned, announced)
            first = self._records(planned)
            for number, change in enumerate(planned.changes):
                if change.reboot:
                    self.reboots.reboot(step, change, first)
                else:
                    with self.run.critical_section(step.name):
                        begun = True
                        sink = self.run.output_sink(step.name)
                        leased_commands.run(self.held, step.name, number, (*first, *change.commands), sink)
                first = ()
                done.append(change)
            self._prove(step)
        except Rebooting:
            yield step.key, None, tuple(done)
            raise
        except BaseException as error:
            self.run.store.forget()
            if isinstance(error, Unreachable):
                error.found += f"; it was at the step '{step.name}'"
            reason = error.found if isinstance(error, RigwrightError) else f"{type(error).__name__}: {error}"
            ends = begun or not self.run.state.stopping.is_set()
            yield step.key, PlannedStep(step, "failed", planned.changes, reason) if ends else None, tuple(done)
            self.run.emit(events.StepDone(host, step.name, "failed", str(error), time.monotonic() - started))
            raise
        yield step.key, PlannedStep(step, "changed", planned.changes), tuple(done)
        self.run.emit(events.StepDone(host, step.name, "changed", "", time.monotonic() - started))

    def _records(self, planned: PlannedStep) -> tuple[Command, ...]:
        """The commands that record on the host what the changes of a step replace, require and lead to.

        They run in the same script as the first change, before it: no interruption can make the change without them.
        """
        step, changes = planned.step, planned.changes
        commands = run_record.before(step.name, changes, first=not self.recorded, tried=self.tried)
        self.recorded = True
        if step.declared.affects_p2p:
            single = step.declared.affects_gpus
            commands = (*commands, required.record_changes(self.run.options.run_id, changes, single=single))
        if any(change.leads_to == "reboot" for change in changes):
            commands = (*commands, *self.reboots.keep())
        return commands

    def _prove(self, step: Step) -> None:
        """Raises the error of the step, or HostError, unless it has nothing left to do."""
        self.run.store.forget()
        again = self.run.planned([step])[0]
        if again.status != "ok":
            wanted = [f"{change.subject}: {change.before or 'nothing'} -> {change.after}" for change in again.changes]
            problem = f"ran, and the host still wants: {'; '.join(wanted) or again.reason}"
            fix = "look at what the host says, then run it again"
            raise again.error or HostError(step.name, problem, "nothing left to do", fix)

    def _require_consent(self, planned: PlannedStep, announced: bool) -> None:
        """Raises ConsentError for a disruptive change that the preview did not show, or while processes use the
        GPUs."""
        name, disruptive = planned.step.name, [change for change in planned.changes if change.disruptive]
        reboots = any(change.leads_to == "reboot" for change in planned.changes)
        if self.run.options.disrupt or not (disruptive or reboots):
            return
        if disruptive and not announced:
            problem = f"{disruptive[0].subject} was not announced ({disruptive[0].before})"
            raise ConsentError(name, problem, "a yes to it", "the same command with --disrupt")
        if users := gpu_users(self.run):
            fix = "wait for their end, or end them; or add --disrupt"
            raise ConsentError(name, f"GPUs are in use by {users}", "idle GPUs", fix)
