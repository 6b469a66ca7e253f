"""Runs an action on many hosts: how many at once, which of them have ended, the limit of failed hosts, Ctrl-C."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue

from msgspec import Struct, field

from rigwright.core.errors import RigwrightError, Unreachable, unexpected
from rigwright.core.process import children, interruption
from rigwright.engine.events import HostFinished, Note
from rigwright.engine.host_run import HostRun
from rigwright.engine.report import HostReport
from rigwright.fleet.host_runs import HostAction, left_behind, run_action

WORKERS = 32
"""The most hosts at a time."""
MOST_OPEN = 64
"""With more hosts, no connection stays open between two actions, and the first action connects."""
SLOW_S, MOST_SLOW = 5.0, 96
"""A host that is read for longer than SLOW_S gives its place to another one; at most MOST_SLOW hosts do."""
GRACE_S = 3.0
"""The time for abandoned hosts to end."""

no_further_host = threading.Event()
"""Set when this process is to begin no further host."""


def do_nothing(*_: object) -> None:
    """Does nothing: the default of callbacks."""


def never(_failed: object) -> bool:
    """False: the default of the limit of failed hosts."""
    return False


def run_hosts(
    runs: Sequence[HostRun],
    action: HostAction,
    *,
    activity: str = "asking",
    meanwhile: Callable[[], object] = do_nothing,
    enough: Callable[[HostRun], bool] = never,
    on_end: Callable[[HostRun], object] = do_nothing,
    last: bool = False,
    reads: bool = False,
) -> None:
    """Runs an action once on every host that has no error, many hosts at a time; the results are in the runs' reports.

    `activity` is shown as progress. `meanwhile` runs in this thread while the first hosts answer. `on_end`, and then
    `enough`, is called after each host, one call at a time; once `enough` returns true, the remaining hosts are not
    attempted. `on_end` must not raise an exception. `last`: no action follows. `reads`: the action only reads, so that
    a slow host does not delay others (`Places`).

    The first Ctrl-C, SIGTERM or SIGHUP begins no further host, waits for critical sections, then raises
    KeyboardInterrupt. A second one abandons the running hosts, and waits for them at most GRACE_S.
    """
    able = [run for run in runs if run.report.error is None]
    if not able:
        meanwhile()
        return
    many = len(able) > MOST_OPEN
    if many:
        # Modules, inventory, playbooks and reports of many hosts stay until the end: searching all of them for cycles
        # takes more time the more hosts there are. Frozen once: what is frozen is never freed, if it is a cycle.
        if not gc.get_freeze_count():
            gc.freeze()
        gc.set_threshold(gc.get_threshold()[0], 50, 50)
    places = Places(WORKERS, MOST_SLOW if reads else 0)

    def act(run: HostRun) -> HostReport:
        with places.one(run.host.name):
            report = run_action(run, action, activity)
            if many:  # connections and facts of all hosts would fill the memory; a later action connects again
                if not isinstance(report.error, Unreachable):
                    run.tidy()
                run.transport.close()
            if many and last:
                run.store.forget(everything=True)
                run.asked.clear()
            return report

    with able[0].stage([run.host.name for run in able]):
        threads = ThreadPoolExecutor(min(places.most, len(able)), thread_name_prefix=interruption.LEFT_BEHIND)
        hosts = HostPool(able, lambda run: threads.submit(act, run), enough, on_end, places.give_up_slow)
        try:
            hosts.run(meanwhile)
        finally:
            threads.shutdown(wait=not hosts.over, cancel_futures=True)


class Places:
    """At most `usual` hosts are at work at a time, besides up to `slow` hosts that have worked for SLOW_S or longer."""

    def __init__(self, usual: int, slow: int) -> None:
        self.most = usual + slow
        self._slow_left = slow
        self._free = threading.Semaphore(usual)
        self._since: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one(self, host: str) -> Iterator[None]:
        """Waits for a place, and holds it for the host."""
        self._free.acquire()
        with self._lock:
            self._since[host] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                held = self._since.pop(host, None) is not None
                self._slow_left += not held
            if held:
                self._free.release()

    def give_up_slow(self) -> None:
        """Takes the place of hosts that are at work for long and gives it to others."""
        now = time.monotonic()
        with self._lock:
            slow = [host for host, since in self._since.items() if now - since > SLOW_S][: self._slow_left]
            self._slow_left -= len(slow)
            for host in slow:
                del self._since[host]
        for _ in slow:
            self._free.release()


class HostPool(Struct):
    """Hosts that were submitted to threads, and the names of those that are `running`.

    A future that could be cancelled had not begun. `on_end`, and then `enough`, is called after each host, one call
    at a time. `while_waiting` is called at least twice a second while hosts are at work.
    """

    runs: Sequence[HostRun]
    submit: Callable[[HostRun], Future[HostReport]]
    enough: Callable[[HostRun], bool]
    on_end: Callable[[HostRun], object]
    while_waiting: Callable[[], object]
    futures: list[Future[HostReport]] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    no_more: bool = False
    merging: threading.RLock = field(default_factory=threading.RLock)
    ended: SimpleQueue[str] = field(default_factory=SimpleQueue)
    """The name of each host that has ended, and _INTERRUPTED. A signal handler may touch nothing else."""
    over: bool = False
    """Whether hosts were left behind; what they do later no longer counts."""

    def run(self, meanwhile: Callable[[], object]) -> None:
        """Submits all hosts and waits for them. Raises KeyboardInterrupt after an interruption."""
        with interruption.handled(lambda _signal: self.ended.put(_INTERRUPTED)):
            for run in self.runs:
                if self.no_more:
                    self._leave_out(run)
                    continue
                self.running.add(run.host.name)
                self.futures.append(self.submit(run))
                self.futures[-1].add_done_callback(partial(self._on_end, run))
            meanwhile()
            self._wait()

    def _wait(self) -> None:
        interrupts = 0
        while self.running or not self.ended.empty():
            self.while_waiting()
            try:
                # A signal that arrives just before `get` blocks is handled after it.
                name = self.ended.get(timeout=0.5)
            except Empty:
                continue
            self.running.discard(name)
            interrupts += name == _INTERRUPTED
            if name == _INTERRUPTED and interrupts == 1:
                self._stop()
            elif name == _INTERRUPTED:
                self._abandon()
                break
        if interrupts:
            raise KeyboardInterrupt

    def _on_end(self, run: HostRun, future: Future[HostReport]) -> None:
        """Called in the host's thread, before that takes the next host."""
        try:
            if future.cancelled():
                self._leave_out(run)
                return
            with self.merging:
                if self.over:
                    return
                try:
                    run.report = future.result(timeout=0)
                except BaseException as error:  # such as no memory; the host may have been changed
                    run.report = run.report.with_error(unexpected(run.host.name, error))
                self.on_end(run)
                run.tell(HostFinished(run.host.name, "failed" if run.report.bad else "done"))
                state = run.state
                state.failed |= {run.host.name} if run.report.bad else set()
                too_many = state.most_failed is not None and len(state.failed) > state.most_failed
                if not self.no_more and (self.enough(run) or too_many or no_further_host.is_set()):
                    self._begin_no_more()
        finally:
            self.ended.put(run.host.name)

    def _begin_no_more(self) -> None:
        self.no_more = True
        for future in list(self.futures):
            future.cancel()

    def _leave_out(self, run: HostRun) -> None:
        run.report = run.report.not_attempted()
        run.tell(HostFinished(run.host.name, "not attempted"))

    def _stop(self) -> None:
        """Begins no further host, ends reading and waiting, and shows the critical sections that are waited for."""
        self._begin_no_more()
        self.runs[0].state.stopping.set()
        children.end_all()
        for run in self.runs:
            if run.host.name not in self.running or run.stop():
                continue
            section = run.current_section
            work = f"'{section}', which must not be interrupted" if section else "the running command"
            run.tell(Note(run.host.name, f"finishing {work}; press Ctrl-C again to stop waiting for it"))

    def _abandon(self) -> None:
        """Closes the connections of the hosts that are still running, and leaves behind what has not ended then."""
        for run in self.runs:
            run.left_in = run.current_section if run.host.name in self.running else ""
            run.transport.abandon()
        until = time.monotonic() + GRACE_S
        while self.running:
            try:
                name = self.ended.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                break
            if name == _INTERRUPTED:
                break
            self.running.discard(name)
        if self.running:
            merging = self.merging.acquire(timeout=1)
            self.over = True
            for run in self.runs:
                if run.host.name in self.running:
                    run.report = left_behind(run)
            if merging:
                self.merging.release()


_INTERRUPTED = "\x03"


def refuse(runs: Sequence[HostRun], errors: Mapping[str, RigwrightError]) -> None:
    """Reports an error of the input, by host, before anything is connected."""
    for run in runs:
        if run.host.name in errors:
            run.report = run.report.with_error(errors[run.host.name])


def leave_out(runs: Sequence[HostRun]) -> None:
    """Reports runs as not attempted; those with an error keep it."""
    for run in runs:
        run.report = run.report.not_attempted()


def tidy(runs: Sequence[HostRun]) -> None:
    """Empties the scratch directories of the hosts, many hosts at a time; of an unreachable host the next run does."""
    untidy = [run for run in runs if run.untidy and not isinstance(run.report.error, Unreachable)]
    if not untidy:
        return
    threads = ThreadPoolExecutor(min(WORKERS, len(untidy)), thread_name_prefix=interruption.LEFT_BEHIND)
    try:
        list(threads.map(lambda run: run.tidy(), untidy))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def close(runs: Sequence[HostRun]) -> None:
    """Tidies the hosts, and closes all connections."""
    try:
        tidy(runs)
    finally:
        for run in runs:
            run.transport.close()
