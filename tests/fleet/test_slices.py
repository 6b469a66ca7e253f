"""Slices of hosts for workers: their sizes, reboots, the limit of failed hosts, Ctrl-C, progress, and a controller that is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigwright import inventory
from rigwright.core.errors import HostError
from rigwright.core.machine_identity import MachineIdentity
from rigwright.core.typed_json import dumps
from rigwright.engine import playbook
from rigwright.engine.events import ActivityStarted, Event, HostFinished
from rigwright.engine.host_run import Options
from rigwright.engine.report import CommandResult, StageResult
from rigwright.fleet import host_job, pool, slice_documents, slice_work, slices, worker_documents
from rigwright.fleet.host_job import HostJob
from rigwright.fleet.slice_documents import SliceAnswer, SliceOrder
from rigwright.history.machines import RecordedMachine, RecordedMachines

pytestmark = pytest.mark.timeout(60)


def prepared(
    folder: Path, count: int, told: list[Event] | None = None, *, size: int = 0, reboots: int = 1
) -> list[HostJob]:
    """Returns the jobs of so many hosts h001, h002, ... without steps."""
    names = [f"h{number:03}" for number in range(1, count + 1)]
    (folder / "hosts.yml").write_text("all:\n  hosts: {" + ", ".join(f"{name}: " for name in names) + "}\n")
    (folder / "play.yml").write_text("- name: P\n  hosts: all\n  tasks: []\n")
    found = inventory.read(folder / "hosts.yml")
    bound = [playbook.bind(folder / "play.yml", found, host) for host in found.select("all")]
    options = Options("run-1", slice=size, reboots=reboots)
    return host_job.prepare(bound, options, (told if told is not None else []).append)


class Seen:
    """What the hosts of a test have done; the actions below write to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun: list[str] = []
        self.rebooting = self.most_rebooting = 0
        self.broken: set[str] = set()
        self.before: Callable[[HostJob], object] = id


seen = Seen()


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets the test before, and asks the workers often."""
    seen.__init__()  # type: ignore[misc]
    monkeypatch.setattr(slices, "POLL_S", 0.05)


def acting(job: HostJob) -> Iterator[StageResult]:
    """Begins, does what the test says, and fails on broken hosts."""
    with seen.lock:
        seen.begun.append(job.host.name)
    seen.before(job)
    if job.host.name in seen.broken:
        raise HostError(job.host.name, "broken", "whole", "repair it")
    yield CommandResult(0, "done")


def rebooting(job: HostJob) -> Iterator[StageResult]:
    """Reboots, and counts how many do so at the same time."""
    with job.run.state.reboot_slots:
        if job.run.state.lost:
            raise HostError(job.host.name, f"{job.run.state.lost} did not come back", "", "")
        with seen.lock:
            seen.begun.append(job.host.name)
            seen.rebooting += 1
            seen.most_rebooting = max(seen.most_rebooting, seen.rebooting)
        time.sleep(0.01)
        with seen.lock:
            seen.rebooting -= 1
        if job.host.name in seen.broken:
            job.run.state.lost = job.host.name
            raise HostError(job.host.name, "did not come back", "", "")
    yield CommandResult(0, "done")


def statuses(jobs: Sequence[HostJob]) -> dict[str, int]:
    """Returns how many hosts have each status."""
    found = [job.report.status for job in jobs]
    return {status: found.count(status) for status in set(found)}


def some(boots: Sequence[bool], most: int, reboots: int) -> list[slices.Slice]:
    """Returns the slices of stand-ins for jobs, of which some will reboot."""
    options = Options("run-1", slice=most, reboots=reboots)
    jobs: list[Any] = []
    for number, each in enumerate(boots):
        planned = [SimpleNamespace(changes=[SimpleNamespace(reboot=each, leads_to="")])]
        run, report = SimpleNamespace(options=options), SimpleNamespace(planned=planned)
        jobs.append(SimpleNamespace(boots=each, number=number, run=run, report=report))
    return slices.cut(jobs, ThreadPoolExecutor(1))


@pytest.mark.parametrize(
    ("hosts", "workers", "size"),
    [(1, 1, 50), (64, 1, 50), (100, 1, 50), (200, 1, 100), (1000, 1, 200), (1000, 4, 125), (1000, 40, 50), (10_000, 8, 200)],
)  # fmt: skip
def test_the_size_of_a_slice(hosts: int, workers: int, size: int) -> None:
    assert slices.size(hosts, workers) == size


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 20), st.integers(1, 9))
def test_no_host_is_lost_and_the_reboots_of_slices_at_a_time_are_no_more_than_allowed(
    boots: list[bool], most: int, reboots: int
) -> None:
    parts = some(boots, most, reboots)
    assert sorted(job.number for part in parts for job in part.jobs) == list(range(len(boots)))  # type: ignore[attr-defined]
    assert all(1 <= len(part.jobs) <= most and part.reboots >= 1 for part in parts)
    counted = [part for part in parts if part.counted]
    assert {job.boots for part in counted for job in part.jobs} <= {True}  # type: ignore[attr-defined]
    at_a_time = counted[: max(1, min(reboots, len(counted)))]
    assert sum(part.reboots for part in at_a_time) <= reboots
    assert len(parts) == len({part.name for part in parts})


@pytest.mark.parametrize(("limit", "size"), [(1, 3), (1, 50), (2, 3), (3, 2), (5, 50)])
def test_no_more_hosts_reboot_at_a_time_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, size: int
) -> None:
    monkeypatch.setattr(slices, "will_reboot", lambda _job: True)
    jobs = prepared(tmp_path, 12, size=size, reboots=limit)
    with ThreadPoolExecutor(8) as workers:
        pool.run_hosts(jobs, rebooting, workers)
    assert statuses(jobs) == {"ok": 12}
    assert 1 <= seen.most_rebooting <= limit
    assert sorted(seen.begun) == [job.host.name for job in jobs]


def test_after_a_host_that_does_not_come_back_the_slices_after_it_reboot_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "will_reboot", lambda _job: True)
    jobs = prepared(tmp_path, 9, size=3)
    seen.broken = {"h001", "h002", "h003"}
    with ThreadPoolExecutor(8) as workers:
        pool.run_hosts(jobs, rebooting, workers)
    assert len(seen.begun) == 1
    assert statuses(jobs) == {"failed": 9}
    for job in jobs[3:]:
        assert job.report.error is not None
        assert job.report.error.found == f"{seen.begun[0]} did not come back"


def test_with_a_slice_too_many_fail_in_it_no_further_host_of_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_work, "WORKERS", 1)
    monkeypatch.setattr(slices, "POLL_S", 60)
    jobs = prepared(tmp_path, 12, size=12)
    seen.broken = {"h002", "h004"}
    failed: list[str] = []

    def enough(job: HostJob) -> bool:
        failed.extend([job.host.name] if job.report.bad else [])
        return len(failed) > 1

    with ThreadPoolExecutor(1) as workers:
        pool.run_hosts(jobs, acting, workers, enough=enough, may_fail=lambda: 1)
    assert seen.begun[:4] == ["h001", "h002", "h003", "h004"]
    assert len(seen.begun) <= 5  # the thread may have begun the next one
    assert statuses(jobs)["failed"] == 2
    assert statuses(jobs)["not_attempted"] == 12 - len(seen.begun)


def test_failed_hosts_of_all_slices_count_together_before_the_slices_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slices at work have each one failed host, which is allowed; both together are too many."""
    monkeypatch.setattr(slice_work, "WORKERS", 2)
    jobs = prepared(tmp_path, 40, size=20)
    seen.broken = {"h001", "h021"}
    seen.before = lambda job: None if job.host.name in seen.broken else time.sleep(0.3)
    told: list[str] = []
    with ThreadPoolExecutor(2) as workers:
        pool.run_hosts(
            jobs, acting, workers, enough=lambda job: told.append(job.host.name) is not None, may_fail=lambda: 1
        )
    assert len(seen.begun) < 20
    assert statuses(jobs)["failed"] == 2
    assert statuses(jobs)["not_attempted"] == 40 - len(seen.begun)


def test_a_slice_that_waits_is_not_begun_after_enough_have_failed(tmp_path: Path) -> None:
    jobs = prepared(tmp_path, 9, size=3)
    seen.broken = {"h001"}
    with ThreadPoolExecutor(1) as workers:
        pool.run_hosts(jobs, acting, workers, enough=lambda job: job.report.bad, may_fail=lambda: 0)
    assert set(seen.begun) <= {"h001", "h002", "h003"}
    assert {job.report.status for job in jobs[3:]} == {"not_attempted"}


def test_what_the_hosts_of_a_slice_do_is_shown_before_it_ends(tmp_path: Path) -> None:
    told: list[Event] = []
    jobs = prepared(tmp_path, 3, told, size=3)

    def shown(name: str) -> list[str]:
        return [event.activity for event in list(told) if isinstance(event, ActivityStarted) and event.host == name]

    def before(job: HostJob) -> None:
        if job.host.name != "h003":
            return
        job.tell(ActivityStarted("h003", "installing\x1b[2J"))
        until = time.monotonic() + 10
        while not (any("its slice is at work" in text for text in shown("h001")) and len(shown("h003")) > 1):
            assert time.monotonic() < until, told
            time.sleep(0.01)
        assert not any(isinstance(event, HostFinished) for event in told)

    seen.before = before
    with ThreadPoolExecutor(1) as workers:
        pool.run_hosts(jobs, acting, workers)
    assert statuses(jobs) == {"ok": 3}
    assert shown("h001")[0] == "in slice 1 of 1"
    assert "done; its slice is at work" in shown("h001")
    assert all("\x1b" not in text for text in shown("h003"))
    assert sorted(event.host for event in told if isinstance(event, HostFinished)) == ["h001", "h002", "h003"]


def test_ctrl_c_begins_no_further_host_and_finishes_what_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_work, "WORKERS", 2)
    jobs = prepared(tmp_path, 12, size=6)
    both_have_begun = threading.Barrier(2)

    def before(job: HostJob) -> None:
        with job.run.critical_section("Room"):
            import signal

            both_have_begun.wait(20)
            if job.host.name == "h001":
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.4)

    seen.before = before
    with ThreadPoolExecutor(1) as workers, pytest.raises(KeyboardInterrupt):
        pool.run_hosts(jobs, acting, workers)
    assert set(seen.begun) == {"h001", "h002"}
    assert statuses(jobs) == {"ok": 2, "not_attempted": 10}


def test_a_worker_whose_controller_is_gone_begins_no_further_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_work, "WORKERS", 1)
    monkeypatch.setattr(slice_work, "ALONE_S", 0.2)
    jobs = prepared(tmp_path, 6)
    seen.before = lambda _job: time.sleep(0.6)
    from rigwright.fleet import remote_work

    orders = tuple(remote_work.order(job, acting) for job in jobs)
    text = slice_documents.order_text(SliceOrder("call-1", "run-1", 1, None, "", orders))
    with ThreadPoolExecutor(1) as worker:
        answer = worker.submit(slice_work.run_slice, text)
        while not seen.begun:
            time.sleep(0.01)
        assert slice_work.asked("another call", "interrupt") == "[]"
        assert '"h001"' in slice_work.asked("call-1", "")
        read = slice_documents.read_answer(answer.result(30), 6)
    reports = [worker_documents.read_answer(job.bound, line) for job, line in zip(jobs, read.answers, strict=True)]
    assert [report.status for report in reports[:1]] == ["ok"]
    assert {report.status for report in reports[3:]} == {"not_attempted"}


def test_a_host_that_a_worker_did_not_begin_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a night in which the controller slept."""
    monkeypatch.setattr(slice_work, "WORKERS", 1)
    monkeypatch.setattr(slice_work, "ALONE_S", 0.2)
    jobs = prepared(tmp_path, 6)
    seen.before = lambda _job: time.sleep(0.7)

    class Asked(ThreadPoolExecutor):
        heard = False

        def ask_all(self, function: Callable[..., str], *arguments: str) -> list[object]:
            said = [] if self.heard else [function(*arguments)]
            self.heard = self.heard or said != ["[]"]
            return list(said)

    with Asked(1) as workers:
        pool.run_hosts(jobs, acting, workers)
    assert jobs[0].report.status == "ok"
    assert {job.report.status for job in jobs[3:]} == {"failed"}
    assert "its worker did not begin it" in str(jobs[5].report.error)
    assert {job.report.exit_code for job in jobs[3:]} == {1}


def test_an_order_that_cannot_be_read_does_not_stop_the_others_of_its_slice(tmp_path: Path) -> None:
    jobs = prepared(tmp_path, 3)

    class Damaging(ThreadPoolExecutor):
        def submit(self, function: Any, text: Any, /) -> Future[Any]:  # type: ignore[override]
            lines = text.split("\n")
            return super().submit(function, "\n".join([*lines[:2], "{}", *lines[3:]]))

    with Damaging(1) as workers:
        pool.run_hosts(jobs, acting, workers)
    assert [job.report.status for job in jobs] == ["ok", "failed", "ok"]
    assert "the worker could not do the work" in str(jobs[1].report.error)


def test_a_slice_that_is_run_twice_counts_once(tmp_path: Path) -> None:
    """As by Dask, when the worker that had it is lost after its work."""
    told: list[Event] = []
    jobs = prepared(tmp_path, 3, told)

    class Twice(ThreadPoolExecutor):
        def submit(self, function: Any, text: Any, /) -> Future[Any]:  # type: ignore[override]
            return super().submit(lambda: (function(text), function(text))[1])

    with Twice(1) as workers:
        pool.run_hosts(jobs, acting, workers)
    assert statuses(jobs) == {"ok": 3}
    assert len(seen.begun) == 6
    assert len([event for event in told if isinstance(event, HostFinished)]) == 3


def test_an_executor_that_takes_no_work_is_the_error_of_each_host(tmp_path: Path) -> None:
    jobs = prepared(tmp_path, 4, size=2)
    workers = ThreadPoolExecutor(1)
    workers.shutdown()
    pool.run_hosts(jobs, acting, workers)
    assert statuses(jobs) == {"failed": 4}
    assert "gave no answer (RuntimeError" in str(jobs[0].report.error)


def test_the_longest_reports_are_left_out_of_an_answer_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_documents, "MOST_CHARACTERS", 10_000)
    lines = ("a" * 3_000, "b" * 9_000, "c" * 2_000)
    text = slice_documents.answer_text(SliceAnswer("", lines), ("one", "two", "three"))
    assert len(text) < 10_000
    read = slice_documents.read_answer(text, 3)
    assert (read.answers[0], read.answers[2]) == (lines[0], lines[2])
    assert "too much for the answer of its slice" in read.answers[1]
    with pytest.raises(ValueError, match="more than 0 MiB"):
        slice_documents.read_answer("x" * 10_001, 3)


@pytest.mark.parametrize(
    "said", [None, 7, "", "x", "[1]", dumps({"h": 1}), dumps([["h001", "a"]]), dumps([["h001", 5, ""]]), "[" * 9999]
)
def test_progress_that_is_none_is_left_out(said: object) -> None:
    good = slice_documents.progress_text([("h001", "a" * 999, "done"), ("h002", "b", "no such end")])
    assert list(slice_documents.read_progress([said, good])) == [("h001", "a" * 200, "done")]


def test_the_clock_of_a_worker_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of events are seconds since the run began, by a clock that nobody sets."""
    jobs = prepared(tmp_path, 2)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    with ThreadPoolExecutor(1) as workers:
        pool.run_hosts(jobs, acting, workers)
    assert all(0 <= job.report.seconds < 60 for job in jobs)
    assert all(0 <= at < 60 for job in jobs for at, _ in job.report.events)


def test_hosts_that_will_reboot_are_those_whose_plan_says_so(tmp_path: Path) -> None:
    (job,) = prepared(tmp_path, 1)
    assert not slices.will_reboot(job)
    changes = (SimpleNamespace(reboot=False, leads_to=""), SimpleNamespace(reboot=False, leads_to="reboot"))
    job.report = replace(job.report, planned=(SimpleNamespace(changes=changes),))  # type: ignore[arg-type]
    assert slices.will_reboot(job)


def test_a_slice_has_the_machines_of_the_history_once(tmp_path: Path) -> None:
    """All hosts of a run share them: in the order of each host they would make its size that of the whole fleet."""
    jobs = prepared(tmp_path, 6, size=3)
    machines = RecordedMachines(
        tuple(
            RecordedMachine(
                number, job.host.name, job.host.address, MachineIdentity(), False, baseline={"gpus": [f"of {number}"]}
            )
            for number, job in enumerate(jobs, 1)
        )
    )
    for job in jobs:
        job.run.recorded = machines
    orders: list[str] = []

    class Kept(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            orders.append(args[0])
            return super().submit(fn, *args, **kwargs)

    with Kept(2) as executor:
        pool.run_hosts(jobs, of_the_history, executor=executor)
    assert [order.count('"of 1"') for order in orders] == [1, 1]
    assert [job.report.get(CommandResult) for job in jobs] == [
        CommandResult(0, f"of {number}") for number in range(1, 7)
    ]


def of_the_history(job: HostJob) -> Iterator[StageResult]:
    """Says what the history has about the host."""
    machine = job.run.recorded.match(job.host.name, job.host.address, MachineIdentity(), False).machine
    yield CommandResult(0, machine.baseline["gpus"][0] if machine and machine.baseline else "nothing")
