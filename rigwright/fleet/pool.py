"""Runs an action on many hosts at once (docs/rollouts.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from rigwright.core import interruption
from rigwright.core.errors import RigwrightError
from rigwright.fleet.host_job import WORKERS, HostAction, HostJob, run_action
from rigwright.fleet.host_pool import HostPool
from rigwright.fleet.merge import not_attempted, with_error
from rigwright.fleet.remote_work import merge_report


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
    reboots: Callable[[HostJob], bool] = lambda _job: False,
    may_fail: Callable[[], int | None] = no_limit,
) -> None:
    """Runs an action once on every host that has no error, many hosts at a time; the results are in the jobs' reports.

    `executor` (default: that of the jobs, else a pool of threads) is not shut down; it gets the hosts in slices (`fleet/slices.py`).
    `activity` is shown as progress. `meanwhile` runs in this thread while the first hosts answer. `on_end`, and then `enough`, is called
    after each host, one call at a time; once `enough` returns true no further host begins, and the remaining hosts are not attempted.
    `on_end` must not raise an exception. `reboots`: whether a host will probably reboot, and `may_fail`: how many more hosts may fail
    before `enough` returns true; both are for workers, which do not see each other.

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
            from rigwright.fleet import slices

            parts = slices.cut(able, workers, reboots)
            slices.run(parts, action, workers, enough, on_end, may_fail, meanwhile)
            return
        threads = ThreadPoolExecutor(min(WORKERS, len(able)), thread_name_prefix=interruption.LEFT_BEHIND)
        hosts = HostPool(
            able, lambda job: threads.submit(run_action, job, action, activity), enough, merge_report, on_end
        )
        try:
            hosts.run(meanwhile)
        finally:
            threads.shutdown(wait=not hosts.over, cancel_futures=True)


def refuse(jobs: Sequence[HostJob], errors: Mapping[str, RigwrightError]) -> None:
    """Reports an error of the input, by host, before anything is connected."""
    for job in jobs:
        if job.host.name in errors:
            job.report = with_error(job.report, errors[job.host.name])


def leave_out(jobs: Sequence[HostJob]) -> None:
    """Reports jobs as not attempted; those with an error keep it."""
    for job in jobs:
        job.report = not_attempted(job.report)
