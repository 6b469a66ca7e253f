"""Actions that workers on other machines run: the order that is sent and the report that comes back, both without secrets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rigwright.core import secrets
from rigwright.core.errors import HostError, InputError, RigwrightError
from rigwright.engine.events import Connected
from rigwright.engine.host_run import EventSink, RunState
from rigwright.engine.report import HostReport
from rigwright.fleet.host_job import HostAction, HostJob, new_run
from rigwright.inventory.model import CONNECTION
from rigwright.inventory.secret_sources import read_private

if TYPE_CHECKING:
    from rigwright.fleet.worker_documents import RemoteJob

PASSWORD_FILE = "RIGWRIGHT_BECOME_PASSWORD_FILE"
"""The environment variable in which a worker names its own file with the sudo password."""

_AGAIN = "look at the worker's log; then run the same command again, which goes on from where the host is"


def order(job: HostJob, action: HostAction) -> str:
    """The JSON text that is sent to a worker.

    Raises HostError when the worker could not do the work without a secret, and for work that cannot be sent.
    """
    from rigwright.fleet import worker_documents

    try:
        return worker_documents.order_text(remote_job(job, action))
    except ValueError as error:
        found = f"its work cannot be sent to a worker: {error}"
        raise HostError(job.host.name, found, "work that can be sent", "run this host without --executor") from None


def remote_job(job: HostJob, action: HostAction) -> RemoteJob:
    """What a worker is to know: of the host's variables those that a connection needs, and no secret. Raises HostError."""
    from rigwright.fleet import worker_documents

    _require_no_secret(job)
    needed = {name: value for name, value in job.host.variables.items() if name in CONNECTION}
    bound = replace(job.bound, host=replace(job.host, variables=needed))
    report, at_s = replace(job.report, events=()), time.monotonic() - job.run.since
    options = job.run.options
    options = replace(
        options, earlier_runs=(*options.earlier_runs, options.run_id)
    )  # the order may be given to a second worker
    announced = any(isinstance(event, Connected) for _, event in job.report.events)
    return worker_documents.RemoteJob(bound, options, action, report, announced, at_s, job.run.recorded)


def _require_no_secret(job: HostJob) -> None:
    """Raises HostError when a step or the connection needs a secret of the inventory."""
    steps = [f"the step '{step.name}'" for step in job.bound.steps if secrets.holds(step.parameters)]
    connection = [name for name in CONNECTION if name in job.host.secret]
    for what in (*steps, *connection):
        found = f"{what} needs a secret of the inventory, which is not sent to workers"
        fix = "run this host without --executor, or with --tags that leave the step out"
        raise HostError(job.host.name, found, "work without secrets", fix)


def refusal(job: HostJob, error: RigwrightError) -> str:
    """The answer in place of a worker's for work that was not sent."""
    from rigwright.fleet import worker_documents

    return worker_documents.answer_text(job.bound, replace(job.report, events=()).with_error(error))


def host_job_of(remote: RemoteJob, state: RunState, tell: EventSink) -> HostJob:
    """The job of an order on this machine, with a connection of its own, and with what hosts of this machine share. `tell` gets its events."""
    since = time.monotonic() - remote.at_s
    run = new_run(remote.bound.host, remote.options, tell, state, _own_password(), since)
    run.recorded, run.announced = remote.recorded, remote.announced
    return HostJob(remote.bound, run, remote.report, tell)


def _own_password() -> Callable[[str], str] | None:
    """The function that reads this worker's own file with the sudo password; None without such a file."""
    file = os.environ.get(PASSWORD_FILE)
    if not file:
        return None

    def read(host: str) -> str:
        try:
            password = read_private(str(Path(file).expanduser()), PASSWORD_FILE).rstrip("\n")
        except InputError as error:
            fix = f"on the worker: {error.fix or f'set {PASSWORD_FILE} to a file that it can read'}"
            raise HostError(host, f"{PASSWORD_FILE}: {error.found}", error.expected, fix) from None
        secrets.learn(password)  # it is left out of the answer
        return password

    return read


def merge_report(job: HostJob, done: Future[HostReport]) -> None:
    """Gives the job the report of an action of this process."""
    job.report = done.result(timeout=0)


def merge_answer(job: HostJob, answer: Future[str]) -> None:
    """Gives the job the report of a worker, whose events are shown now. An answer that is none becomes the host's error."""
    from rigwright.fleet import worker_documents

    try:
        text = answer.result(timeout=0)
    except HostError as error:
        job.report = job.report.with_error(error)
        return
    except BaseException as error:
        found = f"the worker that had it gave no answer ({type(error).__name__}: {error})"
        job.report = job.report.with_error(HostError(job.host.name, found, "a report", _AGAIN))
        return
    try:
        report = worker_documents.read_answer(job.bound, text)
    except HostError as error:
        job.report = job.report.with_error(error)
        return
    job.report = replace(report, events=(*job.report.events, *report.events))
    for _, event in report.events:
        job.tell(event)
