"""What a worker does with a slice: it gives the hosts out to threads of its own, and says meanwhile what they do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from rigwright.core.errors import unexpected
from rigwright.engine.events import ActivityStarted, Event, HostFinished, StepDone, StepStarted
from rigwright.engine.host_run import RunState
from rigwright.engine.report import HostReport
from rigwright.fleet import host_job, remote_work, slice_documents, worker_documents
from rigwright.fleet.host_job import WORKERS, HostAction, HostJob
from rigwright.fleet.host_pool import HostPool
from rigwright.fleet.slice_documents import SliceAnswer, SliceOrder

ALONE_S = 180.0
"""A worker that was asked for progress, and then not for so long, begins no further host: its controller is gone."""
THREADS = "rigwright-slice"
"""The beginning of the names of a worker's threads."""
_PLACES = threading.BoundedSemaphore(2 * WORKERS)
"""The hosts that a worker process handles at a time, of all its slices."""
_at_work: list[_SliceAtWork] = []
_changing = threading.Lock()


def run_slice(text: str) -> str:
    """Does what the order of a slice says on this machine; returns the answer, also after any error."""
    try:
        order = slice_documents.read_order(text)
        with _registered(_SliceAtWork(order)) as at_work:
            return at_work.run()
    except BaseException as error:  # an exception would be pickled
        unexpected("a slice", error)
        return slice_documents.failed_text(error)


def asked(call: str, stop: str) -> str:
    """What the hosts of the slices of this call do, as `slice_documents.progress_text`. `stop`: a way to stop first, "" for none."""
    with _changing:
        slices = [each for each in _at_work if each.order.call == call]
    for each in slices:
        each.asked_at = time.monotonic()
        if stop:
            each.stop(stop)
    return slice_documents.progress_text(line for each in slices for line in each.progress())


@contextmanager
def _registered(at_work: _SliceAtWork) -> Iterator[_SliceAtWork]:
    with _changing:
        _at_work.append(at_work)
    try:
        yield at_work
    finally:
        with _changing:
            _at_work.remove(at_work)


class _SliceAtWork:
    """A slice while its hosts are worked on. `asked_at`: the monotonic time at which the controller asked last, 0 for never."""

    def __init__(self, order: SliceOrder) -> None:
        self.order = order
        self.asked_at = 0.0
        self._state = RunState(threading.BoundedSemaphore(order.reboots), order.lost)
        self._does: dict[str, str] = {}
        self._results: dict[str, str] = {}
        self._actions: dict[str, HostAction] = {}
        self._texts: dict[str, str] = {}
        self._failed = 0
        self._over = threading.Event()
        self._pool: HostPool | None = None
        self._stopped: set[str] = set()

    def run(self) -> str:
        """Works on all hosts; returns the answer. A host whose order cannot be read does not stop the others."""
        jobs: list[HostJob | str] = [self._job(text) for text in self.order.orders]
        ready = [job for job in jobs if isinstance(job, HostJob)]
        if ready:
            self._run(ready)
        answers, names = [], []
        for job in jobs:
            names.append(job.host.name if isinstance(job, HostJob) else "")
            answers.append(self._texts.get(job.host.name) or _answer(job) if isinstance(job, HostJob) else job)
        return slice_documents.answer_text(SliceAnswer(self._state.lost, tuple(answers)), names)

    def _job(self, text: str) -> HostJob | str:
        """The job of an order; the answer where it cannot be read."""
        try:
            remote = replace(worker_documents.read_order(text), recorded=self.order.recorded)
            job = remote_work.host_job_of(remote, self._state, self._tell)
        except BaseException as error:
            unexpected("an order", error)
            return worker_documents.failure_text("", error)
        self._actions[job.host.name] = remote.action
        return job

    def _run(self, jobs: list[HostJob]) -> None:
        threads = ThreadPoolExecutor(min(WORKERS, len(jobs)), thread_name_prefix=THREADS)
        pool = HostPool(
            jobs, lambda job: threads.submit(self._work, job), self._enough, remote_work.merge_report, self._on_end, shared=True
        )  # fmt: skip
        with _changing:
            self._pool, stopped = pool, set(self._stopped)
        for how in stopped:
            _stop(pool, how)
        threading.Thread(target=self._watch, args=(pool,), daemon=True).start()
        try:
            pool.run(int)
        except KeyboardInterrupt:
            pass
        finally:
            self._over.set()
            threads.shutdown(wait=True, cancel_futures=True)

    def _work(self, job: HostJob) -> HostReport:
        with _PLACES:
            try:
                return host_job.run_action(job, self._actions[job.host.name], "beginning")
            finally:
                host_job.close([job])

    def _enough(self, job: HostJob) -> bool:
        self._failed += bool(job.report.bad)
        return self.order.may_fail is not None and self._failed > self.order.may_fail

    def _on_end(self, job: HostJob) -> None:
        """Keeps the answer as text: the report itself is much larger."""
        self._texts[job.host.name] = _answer(job)

    def _watch(self, pool: HostPool) -> None:
        """Begins no further host when the controller, which has asked before, is gone."""
        while not self._over.wait(1):
            if self.asked_at and time.monotonic() - self.asked_at > ALONE_S:
                pool.begin_no_more()
                return

    def _tell(self, event: Event) -> None:
        match event:
            case ActivityStarted(activity=activity) | StepStarted(step=activity):
                self._does[event.host] = activity
            case StepDone():
                self._does[event.host] = "between steps"
            case HostFinished(outcome=outcome):
                self._results[event.host] = outcome

    def progress(self) -> list[tuple[str, str, str]]:
        """What each host does that has begun: its name, its activity, and how it ended."""
        return [(name, activity, self._results.get(name, "")) for name, activity in list(self._does.items())]

    def stop(self, how: str) -> None:
        """Stops in this way; again in the same way does nothing."""
        with _changing:
            pool, again = self._pool, how in self._stopped
            self._stopped.add(how)
        if pool is not None and not again:
            _stop(pool, how)


def _stop(pool: HostPool, how: str) -> None:
    if how == "interrupt":
        pool.interrupt()
    else:
        pool.begin_no_more()


def _answer(job: HostJob) -> str:
    try:
        return worker_documents.answer_text(job.bound, job.report)
    except BaseException as error:  # a value without a JSON form
        unexpected(job.host.name, error)
        return worker_documents.failure_text(job.host.name, error)
