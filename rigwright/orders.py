"""What goes to a worker elsewhere and what comes back: an order and a report, which can be pickled and hold no secret."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from rigwright.crew import Act, Work, guarded, keep, run_of, unheard
from rigwright.errors import HostError
from rigwright.events import Connected
from rigwright.hostreport import HostReport
from rigwright.hostrun import Options, Shared
from rigwright.hosts import Host
from rigwright.playbook import Bound
from rigwright.shell import Secret

PASSWORD_FILE = "RIGWRIGHT_BECOME_PASSWORD_FILE"
"""The variable in which a worker of an executor names its own file with the password that sudo asks for."""


@dataclass(frozen=True)
class Order:
    """What a worker elsewhere is to do for one host, `at_s` seconds after the run began. All of it can be pickled."""

    bound: Bound
    options: Options
    act: Act
    report: HostReport
    at_s: float


def order(one: Work, act: Act) -> Order:
    """The order for a host; of its variables it has those of the connection, and no password."""
    host = without_secrets(one.bound.host)
    at_s = time.monotonic() - one.since
    return Order(replace(one.bound, host=host), one.run.options, act, replace(one.report, host=host), at_s)


def without_secrets(host: Host) -> Host:
    """The host with only those variables that a connection and the acts need, and that are no secret."""
    needed = {
        name: value
        for name, value in host.variables.items()
        if name.startswith(("ansible_", "ssh_", "p2p_")) and not isinstance(value, Secret)
    }
    return replace(host, variables=needed, origins={})


def done(order: Order) -> HostReport:
    """The host's report after the act has run here, over a connection that is made for it and closed again."""
    report = replace(order.report, events=list(order.report.events))
    since = time.monotonic() - order.at_s
    run = run_of(report, order.options, unheard, Shared(threading.BoundedSemaphore()), _own_password(), since)
    run.announced = any(isinstance(event, Connected) for _, event in report.events)
    if report.p2p is not None:
        from rigwright.facts import p2p

        run.store.known[p2p.tested] = report.p2p
    one = Work(order.bound, run, report, unheard, since)
    try:
        guarded(one, order.act)
        keep(one)
    finally:
        run.transport.close()
    return report


def _own_password() -> Callable[[str], str] | None:
    """What reads this worker's own file with sudo's password, where it has one."""
    file = os.environ.get(PASSWORD_FILE)
    if not file:
        return None

    def read(host: str) -> str:
        try:
            return Path(file).expanduser().read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise HostError(host, f"{PASSWORD_FILE}: {file} cannot be read ({error})", "a file on the worker") from None

    return read


def settle(one: Work, answer: Future[HostReport]) -> None:
    """The report is what the worker gave back, its events are told; or it says that the worker was lost."""
    try:
        given = answer.result(timeout=0)
    except Exception as error:
        found = f"the worker that had it gave no answer ({type(error).__name__}: {error})"
        todo = "look at the worker's log; then run the same command again, which goes on from where the host is"
        one.report.status, one.report.error = "failed", HostError(one.report.host.name, found, "a report", todo)
        return
    if given is not one.report:
        known = len(one.report.events)
        vars(one.report).update({**vars(given), "host": one.report.host})
        for _, event in one.report.events[known:]:
            one.tell(event)
