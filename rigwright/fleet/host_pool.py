"""Hosts that were given out to threads or workers: their ends, the limit of failed hosts, Ctrl-C."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Literal

from rigwright.core import child_processes, interruption
from rigwright.core.errors import unexpected
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.engine.events import HostFinished, Note
from rigwright.fleet.host_job import HostJob, left_behind

GRACE_S = 3.0
"""How long hosts that are abandoned may take to end."""

Stop = Literal["begin no more", "interrupt"]
"""`begin no more`: no further host begins; `interrupt`: as after the first Ctrl-C, reading and waiting end too."""


@dataclass
class HostPool:
    """Hosts that were submitted to threads or workers, and which of them have not ended. `merge` gives a job what `submit` returned.

    A future that could be cancelled had not begun. `on_end`, and then `enough`, is called after each host, one call at a time; `on_stop` is
    called once for each way to stop. `shared`: this process also works for others, whose programs are not ended. `while_waiting` is called
    twice a second or more often while hosts are at work.
    """

    jobs: Sequence[HostJob]
    submit: Callable[[HostJob], Future[Any]]
    enough: Callable[[HostJob], bool]
    merge: Callable[[HostJob, Future[Any]], None]
    on_end: Callable[[HostJob], object] = id
    on_stop: Callable[[Stop], object] = len
    shared: bool = False
    while_waiting: Callable[[], object] = int
    futures: list[Future[Any]] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    no_more: bool = False
    merging: threading.RLock = field(default_factory=threading.RLock)
    ended: SimpleQueue[str] = field(default_factory=SimpleQueue)
    """The name of each host that has ended, and _INTERRUPTED. A signal handler may touch nothing else."""
    over: bool = False
    """Whether hosts were left behind; what they do later no longer counts."""

    def run(self, meanwhile: Callable[[], object]) -> None:
        """Submits all hosts and waits for them. Raises KeyboardInterrupt after an interruption."""
        with interruption.handled(lambda _signal: self.interrupt()):
            for job in self.jobs:
                if self.no_more:
                    self._leave_out(job)
                    continue
                self.running.add(job.host.name)
                self.futures.append(self.submit(job))
                self.futures[-1].add_done_callback(partial(self._on_end, job))
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

    def _on_end(self, job: HostJob, future: Future[Any]) -> None:
        """Called in the worker's thread, before it takes the next host."""
        try:
            if future.cancelled():
                self._leave_out(job)
                return
            with self.merging:
                if self.over:
                    return
                before_s = job.report.seconds
                try:
                    self.merge(job, future)
                except BaseException as error:  # such as no memory; the host may have been changed
                    job.report = job.report.with_error(unexpected(job.host.name, error))
                self.on_end(job)
                begun = job.report.bad or job.report.seconds > before_s
                outcome = "not attempted" if not begun else "failed" if job.report.bad else "done"
                job.tell(HostFinished(job.host.name, outcome))
                if not self.no_more and self.enough(job):
                    self.begin_no_more()
        finally:
            self.ended.put(job.host.name)

    def interrupt(self) -> None:
        """As a Ctrl-C; `run` then raises KeyboardInterrupt. May be called in any thread, and in a signal handler."""
        self.ended.put(_INTERRUPTED)

    def begin_no_more(self) -> None:
        """Begins no further host. May be called in any thread."""
        if not self.no_more:
            self.no_more = True
            self.on_stop("begin no more")
        for future in list(self.futures):
            future.cancel()

    def _leave_out(self, job: HostJob) -> None:
        job.report = job.report.not_attempted()
        job.tell(HostFinished(job.host.name, "not attempted"))

    def _stop(self) -> None:
        """Begins no further host, ends reading and waiting, and says which critical sections it waits for."""
        self.begin_no_more()
        self.on_stop("interrupt")
        self.jobs[0].run.state.stopping.set()
        if not self.shared:
            child_processes.end_all()
        for job in self.jobs:
            if job.host.name not in self.running or job.run.stop():
                continue
            section = job.run.current_section
            work = f"'{section}', which must not be interrupted" if section else "the running command"
            job.tell(Note(job.host.name, f"finishing {work}; press Ctrl-C again to stop waiting for it"))

    def _abandon(self) -> None:
        """Abandons the hosts that are still running: closes their connections, and leaves behind what has not ended then."""
        for job in self.jobs:
            job.left_in = job.run.current_section if job.host.name in self.running else ""
            job.run.transport.abandon()
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
            for job in self.jobs:
                if job.host.name in self.running:
                    job.report = left_behind(job)
            if merging:
                self.merging.release()


_INTERRUPTED = "\x03"
