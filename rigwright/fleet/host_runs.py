"""The hosts of a run: made from their playbooks, given their past, and the execution of one action on a host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import chain
from typing import Any

from msgspec.structs import replace

from rigwright.core.errors import Interrupted, RigwrightError, Unreachable, unexpected
from rigwright.core.host_result import HostResult
from rigwright.core.secrets import Secret
from rigwright.engine import run_owner
from rigwright.engine.events import ActivityStarted, Event
from rigwright.engine.host_run import EventSink, HostRun, Options, RunState, Stage
from rigwright.engine.playbook import BoundPlaybook
from rigwright.engine.report import HostReport
from rigwright.facts import FactStore
from rigwright.fleet.actions import connect_host
from rigwright.ssh import open_transport
from rigwright.ssh.transport import Transport

_AGAIN = "run the same command again; it continues from there"

HostAction = Callable[[HostRun], Iterable[HostResult]]
"""An action on one host: yields the result of each stage, and raises the error that stops it."""


def prepare(
    bound: Sequence[BoundPlaybook],
    options: Options,
    emit: EventSink,
    ask_password: Callable[[str], str] | None = None,
    stage: Stage = nullcontext,
    begun: Mapping[str, Transport] | None = None,
) -> list[HostRun]:
    """The hosts of a run, not connected; `begun`: by host a transport that has begun to connect.

    A password is asked for once per host, one host at a time.
    """
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
    runs = []
    for playbook in bound:
        host = playbook.host
        transport = (begun or {}).get(host.name) or open_transport.open_transport(
            host, environment, asker, options.root
        )
        transport.ask_password = asker
        runs.append(HostRun(playbook, transport, options, tell, state, since, stage))
    return runs


def load_recorded(runs: Sequence[HostRun]) -> None:
    """Reads the machines of the history and their baselines; a history that cannot be read counts as empty."""
    from rigwright.history import History, HistoryError

    names = frozenset(run.host.name for run in runs)
    with suppress(HistoryError), History.open(write=False) as past:
        recorded = past.machines(names)
        for run in runs:
            run.recorded = recorded


def run_action(run: HostRun, action: HostAction, activity: str = "") -> HostReport:
    """The host's report after an action: with the results of its stages, its events, kept facts and totals.

    An error of the action is in the report; results from before the error stay. A report that had an error keeps that
    error.
    """
    report = run.report
    started, round_trips, asking_s, events = time.monotonic(), run.transport.round_trips, run.asking_s, len(run.events)
    run.tell(ActivityStarted(run.host.name, activity))
    try:
        connecting = connect_host(run) if run.to_connect else ()
        run.to_connect = False
        for result in chain(connecting, action(run)):
            report = report.with_result(run.with_decisions(result))
    except RigwrightError as error:
        if report.error is None:
            # A connection that was closed on purpose can look like any error of the host.
            ours = bool(run.left_in) or run.abandoned or isinstance(error, (Interrupted, Unreachable))
            report = (
                _report_of_stopped(run, report) if run.state.stopping.is_set() and ours else report.with_error(error)
            )
    except BaseException as error:  # also SystemExit of a library; the report must still say what was done
        bug = unexpected(run.host.name, error)
        report = report.with_error(bug) if report.error is None else report
    return replace(
        report,
        kept={**report.kept, **_kept(run.store)},
        events=(*report.events, *run.events[events:]),
        seconds=report.seconds + time.monotonic() - started,
        round_trips=report.round_trips + run.transport.round_trips - round_trips,
        asking_s=report.asking_s + run.asking_s - asking_s,
    )


def _report_of_stopped(run: HostRun, report: HostReport) -> HostReport:
    """The report of a host whose action Ctrl-C ended: how far it came. Not attempted where nothing was changed."""
    steps = report.applied.steps if report.applied is not None else ()
    broken = next((planned.step.name for planned in steps if planned.status == "failed"), "")
    if run.left_in:
        problem = f"left in the middle of '{run.left_in}', which continues on the host"
    elif run.rebooting:
        problem = "left during its reboot"
    elif broken:
        problem = f"stopped in the middle of '{broken}'"
    elif report.applied is not None and report.applied.done:
        if report.applied.error is None and not any(planned.status in ("pending", "unknown") for planned in steps):
            return report  # it was done; what is left out is what comes after the last step
        problem = "stopped after some steps; the step that was running is complete"
    else:
        return report.not_attempted()
    return report.with_error(Interrupted(run.host.name, problem, "", _AGAIN))


def left_behind(run: HostRun) -> HostReport:
    """The report of a host whose action has not ended, and for which nobody waits any more."""
    problem = "left before it was done; how far it came is not known here"
    if run.left_in:
        problem = f"left in the middle of '{run.left_in}', which continues on the host"
    return run.report.with_error(Interrupted(run.host.name, problem, "", _AGAIN))


def _kept(store: FactStore) -> Mapping[str, Any]:
    return {
        fact.kept_as or fact.name: fact.kept(value)
        for fact, value in store.known.items()
        if fact.kept and not isinstance(value, Exception)
    }
