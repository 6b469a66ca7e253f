"""Runs an action on many hosts at once (docs/guide/rollouts.md)."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from rigwright.core import interruption
from rigwright.core.errors import RigwrightError
from rigwright.engine.report import HostReport
from rigwright.fleet.host_job import MOST_OPEN, WORKERS, HostAction, HostJob, leave, run_action
from rigwright.fleet.host_pool import HostPool
from rigwright.fleet.remote_work import merge_report

SLOW_S, MOST_SLOW = 5.0, 96
"""A host that is read for longer gives its place to another one; so many may."""


def no_limit() -> int | None:
    """No limit of failed hosts."""
    return None


def run_hosts(
    jobs: Sequence[HostJob],
    action: HostAction,
    executor: Executor | None = None,
    *,
    activity: str = "asking",
    meanwhile: Callable[[], object] = int,
    enough: Callable[[HostJob], bool] = lambda _job: False,
    on_end: Callable[[HostJob], object] = id,
    may_fail: Callable[[], int | None] = no_limit,
    last: bool = False,
    reads: bool = False,
) -> None:
    """Runs an action once on every host that has no error, many hosts at a time; the results are in the jobs' reports. `last`: no action
    follows. `reads`: the action only reads the host, so one that keeps it waiting does not keep others waiting (`Places`).

    `executor` (default: that of the jobs, else a pool of threads) is not shut down; it gets the hosts in slices (`fleet/slices.py`).
    `activity` is shown as progress. `meanwhile` runs in this thread while the first hosts answer. `on_end`, and then `enough`, is called
    after each host, one call at a time; once `enough` returns true no further host begins, and the remaining hosts are not attempted.
    `on_end` must not raise an exception. `may_fail`: how many more hosts may fail before `enough` returns true, for workers, which do not
    see each other.

    The first Ctrl-C, SIGTERM or SIGHUP begins no further host, waits for critical sections, then raises KeyboardInterrupt. A second
    one abandons the hosts that are still running, and waits for them no longer than GRACE_S.
    """
    able = [job for job in jobs if job.report.error is None]
    workers = executor or next((job.executor for job in able), None)
    if not able:
        meanwhile()
        return
    many = len(able) > MOST_OPEN
    if many:
        _collect_rarely()

    places = Places(WORKERS, MOST_SLOW if reads else 0)

    def act(job: HostJob) -> HostReport:
        with places.one(job.host.name):
            report = run_action(job, action, activity)
            if many:
                leave(job, report.error, last=last)
            return report

    with able[0].stage([job.host.name for job in able]):
        if workers is not None:
            from rigwright.fleet import slices

            parts = slices.cut(able, workers)
            slices.run(parts, action, workers, enough, on_end, may_fail, meanwhile)
            return
        threads = ThreadPoolExecutor(min(places.most, len(able)), thread_name_prefix=interruption.LEFT_BEHIND)
        hosts = HostPool(
            able, lambda job: threads.submit(act, job), enough, merge_report, on_end, while_waiting=places.give_up_slow
        )
        try:
            hosts.run(meanwhile)
        finally:
            threads.shutdown(wait=not hosts.over, cancel_futures=True)


def _collect_rarely() -> None:
    """Makes Python's search for cycles leave out what there is, and search what has survived rarely: modules, inventory, playbooks and
    reports of many hosts stay until the end, and looking through all of them again and again takes more time the more hosts there are."""
    if not gc.get_freeze_count():  # once: what is frozen is never freed, if it is a cycle
        gc.freeze()
    gc.set_threshold(gc.get_threshold()[0], 50, 50)


class Places:
    """At most `usual` hosts are at work at a time. One that is for longer than SLOW_S seconds, because it hangs or its network is slow, no
    longer counts, up to `slow` such hosts."""

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


def refuse(jobs: Sequence[HostJob], errors: Mapping[str, RigwrightError]) -> None:
    """Reports an error of the input, by host, before anything is connected."""
    for job in jobs:
        if job.host.name in errors:
            job.report = job.report.with_error(errors[job.host.name])


def leave_out(jobs: Sequence[HostJob]) -> None:
    """Reports jobs as not attempted; those with an error keep it."""
    for job in jobs:
        job.report = job.report.not_attempted()
