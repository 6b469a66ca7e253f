"""Actions that workers on other machines run: the job that is sent and the report that comes back, both without secrets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from rigwright.core import secrets
from rigwright.core.errors import HostError, InputError
from rigwright.engine.events import Connected
from rigwright.engine.host_report import HostReport
from rigwright.engine.host_run import Options, RunState
from rigwright.engine.playbook import BoundPlaybook
from rigwright.fleet.host_job import HostAction, HostJob, new_run, no_events, run_action
from rigwright.fleet.merge import with_error
from rigwright.history.machines import RecordedMachines
from rigwright.inventory.model import CONNECTION
from rigwright.inventory.secret_sources import read_private

PASSWORD_FILE = "RIGWRIGHT_BECOME_PASSWORD_FILE"
"""The environment variable in which a worker names its own file with the sudo password."""


@dataclass(frozen=True)
class RemoteJob:
    """An action for one host that a worker is to run. All of it can be pickled. `at_s`: seconds since the run began."""

    bound: BoundPlaybook
    options: Options
    action: HostAction
    report: HostReport
    at_s: float
    recorded: RecordedMachines = field(default_factory=RecordedMachines)


def remote_job(job: HostJob, action: HostAction) -> RemoteJob:
    """What is sent to a worker: of the host's variables those that a connection needs, and no secret.

    Raises HostError when the worker could not do the work without a secret.
    """
    _require_no_secret(job)
    needed = {name: value for name, value in job.host.variables.items() if name in CONNECTION}
    host = replace(job.host, variables=needed, origins={}, closed="", opened=None)
    at_s = time.monotonic() - job.run.since
    bound, report = replace(job.bound, host=host), replace(job.report, host=host)
    return RemoteJob(bound, job.run.options, action, report, at_s, job.run.recorded)


def _require_no_secret(job: HostJob) -> None:
    """Raises HostError when a step or the connection needs a secret of the inventory."""
    steps = [f"the step '{step.name}'" for step in job.bound.steps if secrets.holds(step.parameters)]
    connection = [name for name in CONNECTION if name in job.host.secret]
    for what in (*steps, *connection):
        found = f"{what} needs a secret of the inventory, which is not sent to workers"
        fix = "run this host without --executor, or with --tags that leave the step out"
        raise HostError(job.host.name, found, "work without secrets", fix)


def run_remote(remote: RemoteJob) -> HostReport:
    """Runs the action on this machine, over a connection of its own; returns the host's report."""
    state, since = RunState(threading.BoundedSemaphore()), time.monotonic() - remote.at_s
    run = new_run(remote.bound.host, remote.options, no_events, state, _own_password(), since)
    run.recorded = remote.recorded
    run.announced = any(isinstance(event, Connected) for _, event in remote.report.events)
    try:
        return run_action(HostJob(remote.bound, run, remote.report), remote.action)
    finally:
        run.transport.close()


def _own_password() -> Callable[[str], str] | None:
    """The function that reads this worker's own file with the sudo password; None without such a file."""
    file = os.environ.get(PASSWORD_FILE)
    if not file:
        return None

    def read(host: str) -> str:
        try:
            return read_private(str(Path(file).expanduser()), PASSWORD_FILE).rstrip("\n")
        except InputError as error:
            fix = f"on the worker: {error.fix or f'set {PASSWORD_FILE} to a file that it can read'}"
            raise HostError(host, f"{PASSWORD_FILE}: {error.found}", error.expected, fix) from None

    return read


def merge_report(job: HostJob, answer: Future[HostReport]) -> None:
    """Gives the job the report of an action that ended here or on a worker; a lost worker becomes the host's error.

    Events of a worker are shown now; those of this process were shown as they happened.
    """
    before = job.report
    try:
        report = answer.result(timeout=0)
    except BaseException as error:
        found = f"the worker that had it gave no answer ({type(error).__name__}: {error})"
        fix = "look at the worker's log; then run the same command again, which goes on from where the host is"
        job.report = with_error(before, HostError(job.host.name, found, "a report", fix))
        return
    job.report = replace(report, host=job.host)
    if report.host is not job.host:
        for _, event in report.events[len(before.events) :]:
            job.tell(event)
