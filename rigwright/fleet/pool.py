"""Runs an action on many hosts at once (docs/rollouts.md)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from rigwright.core import child_processes, interruption
from rigwright.core.errors import RigwrightError, unexpected
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.engine.events import HostFinished, Note
from rigwright.fleet.host_job import WORKERS, HostAction, HostJob, left_behind, run_action
from rigwright.fleet.merge import not_attempted, with_error
from rigwright.fleet.remote_work import merge_answer, merge_report, order, refusal, run_remote

GRACE_S = 3.0
"""How long hosts that are abandoned may take to end."""


def run_hosts(
    jobs: Sequence[HostJob],
    action: HostAction,
    executor: Executor | None = None,
    *,
    activity: str = "asking",
    meanwhile: Callable[[], object] = int,
    enough: Callable[[HostJob], bool] = lambda _job: False,
    on_end: Callable[[HostJob], object] = id,
) -> None:
    """Runs an action once on every host that has no error, many hosts at a time; the results are in the jobs' reports.

    `executor` (default: that of the jobs, else a pool of threads) is not shut down. `activity` is shown as progress. `meanwhile`
    runs in this thread while the first hosts answer. `on_end`, and then `enough`, is called after each host, one call at a time; once
    `enough` returns true no further host begins, and the remaining hosts are not attempted. `on_end` must not raise an exception.

    The first Ctrl-C, SIGTERM or SIGHUP begins no further host, waits for critical sections, then raises KeyboardInterrupt. A second
    one abandons the hosts that are still running, and waits for them no longer than GRACE_S.
    """
    able = [job for job in jobs if job.report.error is None]
    workers = executor or next((job.executor for job in able), None)
    if not able:
        meanwhile()
        return
    with able[0].stage([job.host.name for job in able]):
        if workers is not None:
            HostPool(able, lambda job: _sent(workers, job, action), enough, merge_answer, True, on_end).run(meanwhile)
            return
        threads = ThreadPoolExecutor(min(WORKERS, len(able)), thread_name_prefix=interruption.LEFT_BEHIND)
        hosts = HostPool(
            able, lambda job: threads.submit(run_action, job, action, activity), enough, merge_report, on_end=on_end
        )
        try:
            hosts.run(meanwhile)
        finally:
            threads.shutdown(wait=not hosts.over, cancel_futures=True)


def _sent(workers: Executor, job: HostJob, action: HostAction) -> Future[str]:
    """The answer that a worker will give about the host, or the error when the work cannot be sent."""
    try:
        return workers.submit(run_remote, order(job, action))
    except RigwrightError as error:
        refused: Future[str] = Future()
        refused.set_result(refusal(job, error))
        return refused


def refuse(jobs: Sequence[HostJob], errors: Mapping[str, RigwrightError]) -> None:
    """Reports an error of the input, by host, before anything is connected."""
    for job in jobs:
        if job.host.name in errors:
            job.report = with_error(job.report, errors[job.host.name])


def leave_out(jobs: Sequence[HostJob]) -> None:
    """Reports jobs as not attempted; those with an error keep it."""
    for job in jobs:
        job.report = not_attempted(job.report)


@dataclass
class HostPool:
    """Hosts that were submitted to threads or workers, and which of them have not ended. `merge` gives a job what `submit` returned."""

    jobs: Sequence[HostJob]
    submit: Callable[[HostJob], Future[Any]]
    enough: Callable[[HostJob], bool]
    merge: Callable[[HostJob, Future[Any]], None]
    elsewhere: bool = False
    """Whether workers elsewhere do the work: one may have begun with what is cancelled, and goes on with it."""
    on_end: Callable[[HostJob], object] = id
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
        with interruption.handled(lambda _signal: self.ended.put(_INTERRUPTED)):
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
            if future.cancelled() and self.elsewhere and job.report.status == "pending":
                job.report = left_behind(job)
                job.tell(HostFinished(job.host.name, "failed"))
                return
            if future.cancelled():
                self._leave_out(job)
                return
            with self.merging:
                if self.over:
                    return
                try:
                    self.merge(job, future)
                except BaseException as error:  # such as no memory; the host may have been changed
                    job.report = with_error(job.report, unexpected(job.host.name, error))
                self.on_end(job)
                job.tell(HostFinished(job.host.name, "failed" if job.report.bad else "done"))
                if not self.no_more and self.enough(job):
                    self._begin_no_more()
        finally:
            self.ended.put(job.host.name)

    def _begin_no_more(self) -> None:
        self.no_more = True
        for future in self.futures:
            future.cancel()

    def _leave_out(self, job: HostJob) -> None:
        job.report = not_attempted(job.report)
        job.tell(HostFinished(job.host.name, "not attempted"))

    def _stop(self) -> None:
        """Begins no further host, ends reading and waiting, and says which critical sections it waits for."""
        self._begin_no_more()
        self.jobs[0].run.state.stopping.set()
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
