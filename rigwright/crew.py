"""One worker a host: in threads of this process, over connections that stay open, or wherever an executor has its workers.

An executor's worker is given an `Order` and gives back the host's report; both can be pickled, and neither holds a secret.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rigwright.apply import Emit, HostRun, Options, Reboots
from rigwright.errors import HostError, RigwrightError, Unreachable
from rigwright.events import Connected, Event
from rigwright.facts import p2p
from rigwright.hostreport import HostReport
from rigwright.hosts import Host
from rigwright.playbook import Bound, Check
from rigwright.shell import Secret
from rigwright.transport import to

WORKERS = 32
PASSWORD_FILE = "RIGWRIGHT_BECOME_PASSWORD_FILE"
"""The variable in which a worker of an executor names its own file with the password that sudo asks for."""


@dataclass
class Work:
    """A host with its steps, its connection and its report.

    `tell` shows an event, `since` is when the run began (monotonic), `executor` is whose workers act on it, None for threads
    of this process.
    """

    bound: Bound
    run: HostRun
    report: HostReport
    tell: Emit
    since: float
    executor: Executor | None = None

    @property
    def checks(self) -> list[Check]:
        """The checks that can be answered: those of the peer-to-peer test only once it has run."""
        return [one for one in self.bound.checks if self.report.p2p is not None or not active(one)]


Act = Callable[[Work], None]
"""What is done for one host. For an executor: a function of a module, or a `functools.partial` of one."""


def active(check: Check) -> bool:
    """Whether a check judges what the peer-to-peer test did to the GPUs, in place of what can be read at any time."""
    return check.check.startswith("p2p.")


def prepare(
    bound: Sequence[Bound],
    options: Options,
    emit: Emit,
    ask_password: Callable[[str], str] | None = None,
    executor: Executor | None = None,
) -> list[Work]:
    """The work of a run; nothing is connected yet. A password is asked for once a host, and one at a time."""
    reboots = Reboots(threading.BoundedSemaphore(options.reboots))
    passwords: dict[str, Secret] = {}
    asking = threading.Lock()

    def ask(name: str) -> str:
        with asking:
            if name not in passwords and ask_password:
                passwords[name] = Secret(ask_password(name))
        return passwords[name].reveal()

    asker = ask if ask_password else None
    since = time.monotonic()

    def work(one: Bound) -> Work:
        report = HostReport(one.host)
        return Work(one, _run(report, options, emit, reboots, asker, since), report, emit, since, executor)

    return [work(one) for one in bound]


def _run(
    report: HostReport,
    options: Options,
    emit: Emit,
    reboots: Reboots,
    ask: Callable[[str], str] | None,
    since: float,
) -> HostRun:
    """A run whose events stand in the report."""

    def record(event: Event) -> None:
        report.events.append((time.monotonic() - since, event))
        emit(event)

    way = to(report.host, {"RIGWRIGHT_RUN": options.run_id}, ask, options.root)
    return HostRun(report.host, way, options, record, reboots)


def run_hosts(
    work: Sequence[Work],
    act: Act,
    executor: Executor | None = None,
    *,
    meanwhile: Callable[[], object] = int,
    enough: Callable[[Work], bool] = lambda _one: False,
) -> None:
    """`act` has run once for every host that is not in error, side by side; a host's own failure stands in its report.

    `executor` (default: the work's own, else a pool of threads) is not shut down. `meanwhile` runs in this thread while the
    first hosts answer. `enough` is asked as each host ends, one at a time; once it says so no other host is begun, and those
    that were not are not attempted.
    """
    alive = [one for one in work if one.report.error is None]
    elsewhere = executor or next((one.executor for one in alive), None)
    if elsewhere is not None:
        _given_out(alive, lambda one: elsewhere.submit(done, order(one, act)), meanwhile, enough)
        return
    with ThreadPoolExecutor(max_workers=min(WORKERS, max(1, len(alive)))) as pool:
        _given_out(alive, lambda one: pool.submit(guarded, one, act), meanwhile, enough)


def _given_out(
    work: Sequence[Work],
    begin: Callable[[Work], Future[HostReport]],
    meanwhile: Callable[[], object],
    enough: Callable[[Work], bool],
) -> None:
    """All have ended, or were not begun. On Ctrl-C nothing more is begun, and what waits on a host of this process ends soon."""
    futures: list[Future[HostReport]] = []
    over, turn, settled = threading.Event(), threading.RLock(), threading.Semaphore(0)

    def ended(one: Work, future: Future[HostReport]) -> None:
        try:
            if future.cancelled():
                one.report.status = "not_attempted"
                return
            with turn:
                _settle(one, future)
                if enough(one):
                    over.set()
                    for each in futures:
                        each.cancel()
        finally:
            settled.release()

    try:
        for one in work:
            if over.is_set():
                one.report.status = "not_attempted"
                continue
            futures.append(begin(one))
            futures[-1].add_done_callback(partial(ended, one))
        meanwhile()
        for _ in futures:
            settled.acquire()
    except KeyboardInterrupt:
        for each in futures:
            each.cancel()
        for one in work:
            one.run.transport.abandon()
        raise


def guarded(one: Work, act: Act) -> HostReport:
    """The host's report, after the act has run; or it says why not."""
    report, started, before = one.report, time.monotonic(), one.run.transport.round_trips
    try:
        act(one)
    except Unreachable as error:
        report.status, report.error = "unreachable", error
    except RigwrightError as error:
        report.status, report.error = "failed", error
    except Exception as error:  # a bug of ours must not take the other hosts with it
        traceback.print_exc()
        found = f"a bug in rigwright ({type(error).__name__}: {error})"
        report.error = HostError(report.host.name, found, "a run without one", "report it with the lines above")
        report.status = "failed"
    finally:
        report.seconds += time.monotonic() - started
        report.round_trips += one.run.transport.round_trips - before
    return report


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
    """The host with only those variables that a connection needs and that are no secret."""
    needed = {
        name: value
        for name, value in host.variables.items()
        if name.startswith(("ansible_", "ssh_")) and not isinstance(value, Secret)
    }
    return replace(host, variables=needed, origins={})


def done(order: Order) -> HostReport:
    """The host's report after the act has run here, over a connection that is made for it and closed again."""
    report = replace(order.report, events=list(order.report.events))
    since = time.monotonic() - order.at_s
    run = _run(report, order.options, _unheard, Reboots(threading.BoundedSemaphore()), _own_password(), since)
    run.announced = any(isinstance(event, Connected) for _, event in report.events)
    if report.p2p is not None:
        run.store.known[p2p.tested] = report.p2p
    one = Work(order.bound, run, report, _unheard, since)
    try:
        guarded(one, order.act)
        keep(one)
    finally:
        run.transport.close()
    return report


def _unheard(_event: Event) -> None:
    """Nobody watches a worker; its events stand in the report."""


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


def _settle(one: Work, answer: Future[HostReport]) -> None:
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


def keep(one: Work) -> None:
    """The report holds what is known of the facts that the history keeps."""
    known = one.run.store.known.items()
    one.report.kept.update(
        {fact.name: fact.kept(value) for fact, value in known if fact.kept and not isinstance(value, Exception)}
    )


def close(work: Sequence[Work]) -> None:
    """No connection is left open; the reports hold what is known of the facts that the history keeps."""
    for one in work:
        keep(one)
        one.run.transport.close()
