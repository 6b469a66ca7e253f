"""Hosts for workers on other machines, in slices: an order is a slice of hosts, which a worker gives out to threads of its own.

A slice's answer has the report of each of its hosts and comes when all of them have ended. Meanwhile an executor that has a method
`ask_all(function, *arguments)`, which calls a function in every worker process and returns the answers, is asked every POLL_S seconds
what the hosts do: that is shown as progress, counts failed hosts for `--max-fail`, and tells the workers to stop. With an executor
without that method a slice ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, InvalidStateError
from dataclasses import field, replace
from typing import Any, Literal

from rigwright.core.errors import HostError, RigwrightError
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.engine.events import ActivityStarted
from rigwright.fleet import slice_documents, slice_work
from rigwright.fleet.host_job import HostAction, HostJob
from rigwright.fleet.host_pool import HostPool, Stop
from rigwright.fleet.remote_work import merge_answer, order, refusal

LEAST, MOST = 50, 200
"""The hosts of a slice, where its size is computed. Fewer hosts than LEAST are one slice."""
EACH = 2
"""So many slices are made for each worker, because they take different times."""
POLL_S = 2.0
"""So often the workers are asked what their hosts do."""
_ASK_LIMIT_S = 10.0


def size(hosts: int, workers: int) -> int:
    """How many hosts a slice has: EACH slices for each worker, within LEAST and MOST."""
    return min(MOST, max(LEAST, -(-hosts // (EACH * max(1, workers)))))


@dataclass(eq=False)
class Slice:
    """A slice and its state. `reboots`: how many of its hosts may reboot at a time; `counted`: whether these count for the whole fleet."""

    jobs: Sequence[HostJob]
    reboots: int
    counted: bool
    name: str = ""
    future: Future[Any] | None = None
    """What the executor has returned, None as long as it has not got the slice."""
    hosts: dict[str, _HostFuture] = field(default_factory=dict)
    state: Literal["waiting", "given out", "cancelled"] = "waiting"
    changing: threading.Lock = field(default_factory=threading.Lock)

    def take(self, state: Literal["given out", "cancelled"]) -> bool:
        """Whether it was waiting, and has this state now."""
        with self.changing:
            was, self.state = self.state, state if self.state == "waiting" else self.state
        return was == "waiting"

    def cancel(self) -> bool:
        """Cancels it, unless it has begun; returns whether it is cancelled."""
        if self.take("cancelled"):
            for each in self.hosts.values():
                each.cancel_alone()
        return self.state == "cancelled" or (self.future is not None and self.future.cancel())


class _HostFuture(Future[str]):
    """The answer about a host, whose slice is cancelled with it."""

    def __init__(self, part: Slice) -> None:
        super().__init__()
        self._part = part

    def cancel(self) -> bool:
        return self.cancelled() or (not self.done() and self._part.cancel())

    def cancel_alone(self) -> None:
        """Cancels this host only."""
        super().cancel()


def will_reboot(job: HostJob) -> bool:
    """Whether the plan of a host has a reboot."""
    changes = (change for planned in job.report.planned for change in planned.changes)
    return any(change.reboot or change.leads_to == "reboot" for change in changes)


def cut(jobs: Sequence[HostJob], executor: Executor) -> list[Slice]:
    """The slices of these hosts, in their order: those that will not reboot, then those that will.

    The hosts that will reboot are in at most as many slices at a time as hosts may reboot, which share that number.
    """
    limit = jobs[0].run.options.reboots
    most = jobs[0].run.options.slice or size(len(jobs), getattr(executor, "workers", 1))
    booting = [job for job in jobs if will_reboot(job)]
    others = [job for job in jobs if not will_reboot(job)]
    at_a_time = max(1, min(limit, -(-len(booting) // most)))
    parts = [Slice(others[at : at + most], limit, False) for at in range(0, len(others), most)]
    parts += [Slice(booting[at : at + most], limit // at_a_time, True) for at in range(0, len(booting), most)]
    return [replace(part, name=f"{number} of {len(parts)}") for number, part in enumerate(parts, 1)]


def run(
    parts: Sequence[Slice],
    action: HostAction,
    executor: Executor,
    enough: Callable[[HostJob], bool],
    on_end: Callable[[HostJob], object],
    may_fail: Callable[[], int | None],
    meanwhile: Callable[[], object],
) -> None:
    """Gives the slices to the workers and waits for their answers; the arguments are those of `pool.run_hosts`."""
    work = _Work(parts, action, executor, may_fail)
    jobs = [job for part in parts for job in part.jobs]
    before_s = {job.host.name: job.report.seconds for job in jobs}
    hosts = HostPool(jobs, work.submit, enough, merge_answer, on_end, work.tell_workers)
    watch = threading.Thread(target=work.watch, args=(hosts,), daemon=True)
    watch.start()
    try:
        hosts.run(meanwhile)
    finally:
        work.ended.set()
    if not hosts.no_more:
        for job in jobs:
            if job.report.seconds == before_s[job.host.name] and job.report.error is None:
                job.report = job.report.with_error(_not_begun(job.host.name))


def _not_begun(name: str) -> HostError:
    """The error of a host that a worker did not begin although nothing here stopped it."""
    found = f"its worker did not begin it: this machine had not asked the worker for {slice_work.ALONE_S:g} s"
    return HostError(
        name, found, "a controller that is awake and has a way to its workers", "run the same command again"
    )


class _Work:
    """The slices of one call of `run`."""

    def __init__(
        self, parts: Sequence[Slice], action: HostAction, executor: Executor, may_fail: Callable[[], int | None]
    ) -> None:
        self.action, self.executor, self.may_fail = action, executor, may_fail
        self.parts = parts
        for part in parts:
            part.hosts = {job.host.name: _HostFuture(part) for job in part.jobs}
        self.part_of = {job.host.name: part for part in parts for job in part.jobs}
        self.options = parts[0].jobs[0].run.options
        self.state = parts[0].jobs[0].run.state
        self.ended = threading.Event()
        self.call = os.urandom(8).hex()
        """What the workers know the slices of this call by."""
        counted = [part for part in parts if part.counted]
        self.turn = max(1, min(self.options.reboots, len(counted)))
        """So many slices whose hosts will reboot are given out at a time; `waiting` are the others of them."""
        self.waiting = deque(counted[self.turn :])
        self.shown: dict[str, tuple[str, str]] = {}

    def submit(self, job: HostJob) -> Future[str]:
        """The future answer about a host; the slice is given out with its first host, or when its turn comes."""
        part = self.part_of[job.host.name]
        if part not in self.waiting:
            self._send(part)
        return part.hosts[job.host.name]

    def _send(self, part: Slice) -> bool:
        """Gives out a slice that is waiting; returns whether it was. An error is that of its hosts."""
        if not part.take("given out"):
            return False
        try:
            self._send_orders(part)
        except BaseException as error:  # the executor takes no work any more
            for each in part.hosts.values():
                with contextlib.suppress(InvalidStateError):  # it has its answer
                    each.set_exception(error)
        return True

    def _send_orders(self, part: Slice) -> None:
        orders: dict[str, str] = {}
        for job in part.jobs:
            try:
                orders[job.host.name] = order(job, self.action)
            except RigwrightError as error:
                part.hosts[job.host.name].set_result(refusal(job, error))
        if not orders:
            part.future = Future()
            part.future.set_result(None)
            self._next(part)
            return
        for job in part.jobs:
            if job.host.name in orders:
                job.tell(ActivityStarted(job.host.name, f"in slice {part.name}"))
        sent = slice_documents.SliceOrder(
            self.call, self.options.run_id, part.reboots, self.may_fail(), self.state.lost, tuple(orders.values()),
            part.jobs[0].run.recorded,
        )  # fmt: skip
        part.future = self.executor.submit(slice_work.run_slice, slice_documents.order_text(sent))
        part.future.add_done_callback(lambda future: self._settle(part, list(orders), future))

    def _settle(self, part: Slice, names: Sequence[str], future: Future[Any]) -> None:
        """Gives each host of a slice its answer. Called in a thread of the executor, or in the one that cancels."""
        try:
            if future.cancelled():
                for name in names:
                    part.hosts[name].cancel_alone()
                return
            try:
                answer = slice_documents.read_answer(future.result(timeout=0), len(names))
                if answer.lost in names:
                    self.state.lost = self.state.lost or answer.lost
                for name, text in zip(names, answer.answers, strict=True):
                    part.hosts[name].set_result(text)
            except BaseException as error:
                for name in names:
                    with contextlib.suppress(InvalidStateError):  # it has its answer
                        part.hosts[name].set_exception(_of_host(name, error))
        finally:
            self._next(part)

    def _next(self, part: Slice) -> None:
        """Gives out the next slice whose hosts will reboot, after one of them has ended."""
        while part.counted and self.waiting:
            following = self.waiting.popleft()
            if self._send(following):
                return

    def watch(self, hosts: HostPool) -> None:
        """Asks the workers until all slices have ended, shows what their hosts do, and stops when too many have failed."""
        asked: threading.Thread | None = None
        while not self.ended.wait(POLL_S):
            if asked is None or not asked.is_alive():
                asked = threading.Thread(target=self._look, args=(hosts,), daemon=True)
                asked.start()
                asked.join(_ASK_LIMIT_S)

    def _look(self, hosts: HostPool) -> None:
        jobs = {job.host.name: job for job in hosts.jobs}
        failed: set[str] = set()
        for name, activity, result in slice_documents.read_progress(self._ask("")):
            if name not in hosts.running or name not in jobs or self.ended.is_set():
                continue
            failed |= {name} if result == "failed" else set()
            if self.shown.get(name) != (activity, result):
                self.shown[name] = (activity, result)
                text = f"{result}; its slice is at work" if result else activity
                jobs[name].tell(ActivityStarted(name, text))
        limit = self.may_fail()
        if limit is not None and len(failed) > limit:
            hosts.begin_no_more()

    def tell_workers(self, stop: Stop) -> None:
        """Gives out no further slice; tells all workers to stop in this way, and does not wait for them."""
        for part in self.parts:
            part.cancel()
        threading.Thread(target=self._ask, args=(stop,), daemon=True).start()

    def _ask(self, stop: str) -> list[object]:
        """What the workers answer; nothing where they cannot be asked."""
        ask = getattr(self.executor, "ask_all", lambda function, *arguments: [function(*arguments)])
        try:
            return list(ask(slice_work.asked, self.call, stop))
        except Exception:  # the scheduler is gone: the futures say so
            return []


def _of_host(name: str, error: BaseException) -> BaseException:
    """The error of a host whose slice has no answer that can be read."""
    if not isinstance(error, ValueError):
        return error
    fix = "look at the worker's log, and at who can reach the scheduler and its workers"
    return HostError(name, f"the worker's answer is no report of this host: {error}", "the report of the work", fix)
