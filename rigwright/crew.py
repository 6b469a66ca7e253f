"""A host of a run with its steps, its connection and its report, and what is done for it without harm to the others."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from rigwright.errors import HostError, Interrupted, RigwrightError, Unreachable
from rigwright.events import Begun, Event
from rigwright.hostreport import HostReport
from rigwright.hostrun import Emit, HostRun, Options, Shared
from rigwright.playbook import Bound, Check
from rigwright.shell import Secret
from rigwright.transport import to

PROGRAMS = "programs."
"""Checks of what programs said that are not ours. Each is named as its fact."""

MEASURED = {"environment.clean": "p2p.settings"}
"""Checks of what can be read at any time, and those that say the same once the peer-to-peer test has measured what it costs."""

Stage = Callable[[Sequence[str]], AbstractContextManager[object]]
"""Shows, as long as it is open, what becomes of hosts with these names."""


def unseen(_hosts: Sequence[str]) -> AbstractContextManager[object]:
    """Nobody watches."""
    return nullcontext()


def unheard(_event: Event) -> None:
    """Nobody is told."""


@dataclass
class Work:
    """A host with its steps, its connection and its report.

    `tell` shows an event, `stage` what is under way, `since` is when the run began (monotonic), `executor` is whose workers
    act on it, None for threads of this process.
    """

    bound: Bound
    run: HostRun
    report: HostReport
    tell: Emit = unheard
    since: float = 0.0
    executor: Executor | None = None
    stage: Stage = unseen
    left: str = ""

    @property
    def checks(self) -> list[Check]:
        """The checks that can be answered: those of the peer-to-peer test, and of other programs, only once they have run.
        What the test tells with its measured cost is not told without it as well."""
        ran = {fact.name for fact in self.run.store.known}
        known = [one for one in self.bound.checks if not one.check.startswith(PROGRAMS) or one.check in ran]
        if self.report.p2p is None:
            return [one for one in known if not active(one)]
        names = {one.check for one in known}
        return [one for one in known if MEASURED.get(one.check) not in names]


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
    stage: Stage = unseen,
) -> list[Work]:
    """The work of a run; nothing is connected yet. A password is asked for once a host, and one at a time."""
    shared = Shared(threading.BoundedSemaphore(options.reboots))
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
        return Work(one, run_of(report, options, emit, shared, asker, since), report, emit, since, executor, stage)

    return [work(one) for one in bound]


def run_of(
    report: HostReport,
    options: Options,
    emit: Emit,
    shared: Shared,
    ask: Callable[[str], str] | None,
    since: float,
) -> HostRun:
    """A run whose events stand in the report."""

    def record(event: Event) -> None:
        report.events.append((time.monotonic() - since, event))
        emit(event)

    way = to(report.host, {"RIGWRIGHT_RUN": options.run_id}, ask, options.root)
    return HostRun(report.host, way, options, record, shared)


def guarded(one: Work, act: Act, doing: str = "") -> HostReport:
    """The host's report, after the act has run; or it says why not."""
    report, started, before = one.report, time.monotonic(), (one.run.transport.round_trips, one.run.asking_s)
    one.tell(Begun(report.host.name, doing))
    try:
        act(one)
    except RigwrightError as error:
        report.status = "unreachable" if isinstance(error, Unreachable) else "failed"
        report.error = error
        if one.run.shared.stopping.is_set():
            _stopped(one)
    except Exception as error:  # a bug of ours must not take the other hosts with it
        traceback.print_exc()
        found = f"a bug in rigwright ({type(error).__name__}: {error})"
        report.error = HostError(report.host.name, found, "a run without one", "report it with the lines above")
        report.status = "failed"
    finally:
        report.seconds += time.monotonic() - started
        report.round_trips += one.run.transport.round_trips - before[0]
        report.asking_s += one.run.asking_s - before[1]
    return report


@contextmanager
def despite_errors(work: Sequence[Work]) -> Iterator[None]:
    """Hosts that answered and then failed count as the others do, as long as it is open; afterwards their errors are theirs
    again, and what else became of them is told nowhere."""
    failed = [(one, one.report.status, one.report.error) for one in work if isinstance(one.report.error, HostError)]
    for one, _, _ in failed:
        one.report.error = None
    try:
        yield
    finally:
        for one, status, error in failed:
            one.report.status, one.report.error = status, error


def _stopped(one: Work) -> None:
    """The report says how far a host came that somebody stopped, whatever its last words were."""
    name, changed = one.report.host.name, one.report.outcome is not None and bool(one.report.outcome.done)
    todo = "the same command finds it, and goes on from there"
    one.report.status, one.report.error = "failed", None
    if one.left:
        found = f"left in the middle of '{one.left}', which goes on on the host"
        one.report.error = Interrupted(name, found, "", todo)
    elif one.run.rebooting:
        one.report.error = Interrupted(name, "left while it was rebooting", "", todo)
    elif changed:
        one.report.error = Interrupted(name, "stopped half way; what was begun was finished", "", todo)
    else:
        one.report.status = "not_attempted"


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
