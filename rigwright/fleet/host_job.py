"""A host in a run with its playbook, connection and report, and the execution of one action on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rigwright.checks import accepted
from rigwright.core.errors import Interrupted, RigwrightError, Unreachable, unexpected
from rigwright.core.host_result import HostResult
from rigwright.core.secrets import Secret
from rigwright.engine import run_owner
from rigwright.engine.events import ActivityStarted, Event
from rigwright.engine.host_run import EventSink, HostRun, Options, RunState
from rigwright.engine.playbook import BoundPlaybook
from rigwright.engine.report import CheckResult, ConnectResult, HostReport
from rigwright.facts import FactStore
from rigwright.inventory.model import Host
from rigwright.ssh import open_transport
from rigwright.ssh.transport import Transport

Stage = Callable[[Sequence[str]], AbstractContextManager[object]]
"""A context that shows the progress of the hosts with these names."""
_AGAIN = "run the same command again; it continues from there"


def no_events(_event: Event) -> None:
    """No-op event sink."""


class HostJob(Struct):
    """A host in a run. `report` is replaced by a new one after each action; only the package fleet replaces it.

    `tell` shows an event that is not part of the report. `stage` shows progress. `left_in` is the critical section that
    a second Ctrl-C abandoned. `to_connect`: the first action connects to the host.
    """

    bound: BoundPlaybook
    run: HostRun
    report: HostReport
    tell: EventSink = no_events
    stage: Stage = nullcontext
    left_in: str = ""
    to_connect: bool = False

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
        self.run.transport.close()
        self.report = HostReport(self.host)


HostAction = Callable[[HostJob], Iterable[HostResult]]
"""An action on one host: yields the result of each stage, and raises the error that stops it."""


def prepare(
    bound: Sequence[BoundPlaybook],
    options: Options,
    emit: EventSink,
    ask_password: Callable[[str], str] | None = None,
    stage: Stage = nullcontext,
    begun: Mapping[str, Transport] | None = None,
) -> list[HostJob]:
    """The jobs of a run, not connected; `begun`: by host a transport that has begun to connect. A password is asked for
    once per host, one host at a time."""
    state = RunState(threading.BoundedSemaphore(options.reboots))
    passwords: dict[str, Secret] = {}
    asking = threading.Lock()

    def ask(name: str) -> str:
        with asking:
            if name not in passwords and ask_password:
                passwords[name] = Secret(ask_password(name))
        return passwords[name].reveal()

    failed = threading.Event()

    def tell(event: Event) -> None:
        """Shows events until that fails once: a display must not end the work on a host, or falsify its report."""
        if failed.is_set():
            return
        try:
            emit(event)
        except (Exception, SystemExit) as error:
            failed.set()
            unexpected(event.host, error)

    asker, since, environment = ask if ask_password else None, time.monotonic(), run_owner.environment(options.run_id)
    jobs = []
    for playbook in bound:
        host = playbook.host
        transport = (begun or {}).get(host.name) or open_transport.open_transport(
            host, environment, asker, options.root
        )
        transport.ask_password = asker
        run = HostRun(host, transport, options, tell, state, since)
        jobs.append(HostJob(playbook, run, HostReport(host), tell, stage))
    return jobs


def load_recorded(jobs: Sequence[HostJob]) -> None:
    """Reads the machines of the history and their baselines; a history that cannot be read counts as empty."""
    from rigwright.history import History, HistoryError

    names = frozenset(job.host.name for job in jobs)
    with suppress(HistoryError), History.open(write=False) as past:
        recorded = past.machines(names)
        for job in jobs:
            job.run.recorded = recorded


def connect(job: HostJob) -> ConnectResult:
    """Connects to the host, and waits for one that an interrupted run has rebooted. Raises Unreachable, Interrupted."""
    from rigwright.engine.boot import order as reboot_order

    began = time.monotonic()
    reboot_order.connect(job.run, job.tell)
    return ConnectResult(time.monotonic() - began)


def run_action(job: HostJob, action: HostAction, activity: str = "") -> HostReport:
    """The job's report after an action: with the results of its stages, its events, kept facts and totals.

    An error of the action is in the report; results from before the error stay. A report that had an error keeps that
    error.
    """
    run, report = job.run, job.report
    started, round_trips, asking_s, events = time.monotonic(), run.transport.round_trips, run.asking_s, len(run.events)
    job.tell(ActivityStarted(job.host.name, activity))
    try:
        if job.to_connect:
            job.to_connect = False
            report = report.with_result(connect(job))
        for result in action(job):
            report = report.with_result(job.with_decisions(result))
    except RigwrightError as error:
        if report.error is None:
            # A connection that was closed on purpose can look like any error of the host.
            ours = bool(job.left_in) or run.abandoned or isinstance(error, (Interrupted, Unreachable))
            report = _stopped(job, report) if run.state.stopping.is_set() and ours else report.with_error(error)
    except BaseException as error:  # also SystemExit of a library; the report must still say what was done
        bug = unexpected(job.host.name, error)
        report = report.with_error(bug) if report.error is None else report
    return replace(
        report,
        kept={**report.kept, **_kept(run.store)},
        events=(*report.events, *run.events[events:]),
        seconds=report.seconds + time.monotonic() - started,
        round_trips=report.round_trips + run.transport.round_trips - round_trips,
        asking_s=report.asking_s + run.asking_s - asking_s,
    )


def _stopped(job: HostJob, report: HostReport) -> HostReport:
    """The report of a host whose action Ctrl-C ended: how far it came. Not attempted where nothing was changed."""
    steps = report.applied.steps if report.applied is not None else ()
    broken = next((planned.step.name for planned in steps if planned.status == "failed"), "")
    if job.left_in:
        found = f"left in the middle of '{job.left_in}', which continues on the host"
    elif job.run.rebooting:
        found = "left during its reboot"
    elif broken:
        found = f"stopped in the middle of '{broken}'"
    elif report.applied is not None and report.applied.done:
        if report.applied.error is None and not any(planned.status in ("pending", "unknown") for planned in steps):
            return report  # it was done; what is left out is what comes after the last step
        found = "stopped after some steps; the step that was running is complete"
    else:
        return report.not_attempted()
    return report.with_error(Interrupted(job.host.name, found, "", _AGAIN))


def left_behind(job: HostJob) -> HostReport:
    """The report of a host whose action has not ended, and for which nobody waits any more."""
    found = "left before it was done; how far it came is not known here"
    if job.left_in:
        found = f"left in the middle of '{job.left_in}', which continues on the host"
    return job.report.with_error(Interrupted(job.host.name, found, "", _AGAIN))


def _kept(store: FactStore) -> Mapping[str, Any]:
    return {
        fact.kept_as or fact.name: fact.kept(value)
        for fact, value in store.known.items()
        if fact.kept and not isinstance(value, Exception)
    }
