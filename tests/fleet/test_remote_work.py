"""`fleet.run_hosts` with any executor: data sent to a worker and back, data that must not be sent, a lost worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from rigwright import inventory
from rigwright.core.command import Command, Result
from rigwright.core.errors import HostError, Unreachable
from rigwright.core.machine_identity import MachineIdentity
from rigwright.core.secrets import Secret
from rigwright.engine import playbook
from rigwright.engine.events import Connected, Event, Note
from rigwright.engine.host_run import Options
from rigwright.engine.report import CheckResult, ConnectResult, FactsResult, HostReport, StageResult
from rigwright.facts import system
from rigwright.facts.machine import Past
from rigwright.facts.plain import plain
from rigwright.fleet import actions, host_job, remote_work, slice_documents, slice_work, worker_documents
from rigwright.fleet import pool as fleet_pool
from rigwright.fleet.host_job import HostJob
from rigwright.fleet.slice_documents import SliceOrder
from rigwright.history import History
from rigwright.history.machines import RecordedMachine, RecordedMachines
from rigwright.report import json_document
from rigwright.ssh.transport import Ssh
from tests.ssh.fake_transport import FakeTransport

HOSTS = """all:
  hosts: {one: , two: , three: }
  vars: {ansible_user: ubuntu, ansible_become_password: hunter2, api_token: swordfish, ansible_ssh_private_key_file: %s}
"""
PLAY = "- name: P\n  hosts: all\n  tasks:\n    - name: Room\n      file.directory: {path: /srv/room}\n"


def answer_of(order: str) -> str:
    """Returns a worker's answer about the host of an order."""
    slice_order = SliceOrder("call", "run-1", 1, None, "", (order,))
    answer = slice_work.run_slice(slice_documents.order_text(slice_order))
    return slice_documents.read_answer(answer, 1).answers[0]


@pytest.fixture(params=["none", "threads", "processes"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor | None]:
    """Yields no executor, a thread pool, or a process pool."""
    if request.param == "none":
        yield None
        return
    made: Executor = ThreadPoolExecutor(2)
    if request.param == "processes":
        made = ProcessPoolExecutor(2, mp_context=get_context("forkserver"))
    with made:
        yield made


def prepared(folder: Path, told: list[Event] | None = None) -> list[HostJob]:
    """Returns the jobs of three hosts that each need a folder."""
    (folder / "key").write_text("")
    (folder / "hosts.yml").write_text(HOSTS % (folder / "key"))
    (folder / "play.yml").write_text(PLAY)
    found = inventory.read(folder / "hosts.yml")
    bound = [playbook.bind(folder / "play.yml", found, one) for one in found.select("all")]
    return host_job.prepare(bound, Options("run-1"), (told if told is not None else []).append)


def answers(name: str, cmd: Command) -> Result:
    """Answers as a host without the folder; its boot id is the id of the calling process and the host's name."""
    if cmd == system.boot_id.command:
        return Result(0, f"{os.getpid()} {name}\n".encode())
    return Result(1, b"", b"") if cmd == system.simulated.command else Result(0, b"absent\n")


def planned(job: HostJob) -> Iterator[StageResult]:
    """Plans as `actions.plan_or_fail` does, on a simulated host."""
    job.run.transport = FakeTransport(partial(answers, job.host.name))
    yield FactsResult({"seen by": str(job.run.value(system.boot_id))})
    yield from actions.plan_or_fail(job)
    job.run.emit(Note(job.host.name, "planned"))


def compared(job: HostJob) -> Iterator[StageResult]:
    """The host has twice the memory that it had in its last run."""
    assert job.run.earlier is not None
    yield CheckResult((), replace(job.run.earlier, memory_mib=2 * job.run.earlier.memory_mib))


def failing(job: HostJob) -> Iterator[StageResult]:
    """Each host ends with a different result."""
    yield ConnectResult(0.5)
    if job.host.name == "one":
        raise Unreachable("one", "no login within 20 s", "a host that answers", "is it on?")
    if job.host.name == "two":
        raise HostError("two", "the disk is full", "room", "df -h")


def dying(job: HostJob) -> tuple[StageResult, ...]:
    """The worker process exits while it works on host two."""
    if job.host.name == "two":
        os._exit(9)
    return ()


def test_every_host_is_done_once_wherever_it_is_done(tmp_path: Path, executor: Executor | None) -> None:
    told: list[Event] = []
    work = prepared(tmp_path, told)
    fleet_pool.run_hosts(work, planned, executor)
    assert [one.report.status for one in work] == ["pending"] * 3
    assert [one.report.planned[0].changes[0].subject for one in work] == ["/srv/room/"] * 3
    workers, names = zip(*(one.report.facts["seen by"].split() for one in work), strict=True)
    assert names == ("one", "two", "three")
    assert (str(os.getpid()) in workers) == (not isinstance(executor, ProcessPoolExecutor))
    notes = [event.host for event in told if isinstance(event, Note)]
    assert sorted(notes) == ["one", "three", "two"]
    for one in work:
        assert sum(isinstance(event, Connected) for _, event in one.report.events) == 1
        assert one.report.round_trips >= 1
        assert one.report.host is one.host
    fleet_pool.run_hosts(work, planned, executor)
    assert [sum(isinstance(event, Connected) for _, event in one.report.events) for one in work] == [1, 1, 1]
    assert all(
        later >= earlier
        for (earlier, _), (later, _) in zip(work[0].report.events, work[0].report.events[1:], strict=False)
    )


def test_a_failure_is_the_hosts_own_and_comes_back_whole(tmp_path: Path, executor: Executor | None) -> None:
    work = prepared(tmp_path)
    fleet_pool.run_hosts(work, failing, executor)
    assert [one.report.status for one in work] == ["unreachable", "failed", "not_attempted"]
    assert [one.report.exit_code for one in work] == [3, 1, 0]
    assert [one.report.connecting_s for one in work] == [0.5] * 3  # a result from before the error stays
    error = work[0].report.error
    assert isinstance(error, Unreachable)
    assert (error.where, error.found, error.expected, error.fix) == (
        "one", "no login within 20 s", "a host that answers", "is it on?",
    )  # fmt: skip
    fleet_pool.run_hosts(work, planned, executor)
    assert [one.report.status for one in work] == ["unreachable", "failed", "pending"]


def test_nothing_secret_is_in_an_order(tmp_path: Path) -> None:
    work = prepared(tmp_path)
    sent = remote_work.order(work[0], actions.plan_or_fail)
    assert "hunter2" not in sent
    assert "swordfish" not in sent
    assert worker_documents.read_order(sent).bound.host.variables["ansible_user"] == "ubuntu"
    assert work[0].bound.host.variables["ansible_become_password"] == Secret("hunter2")
    whole = replace(remote_work.remote_job(work[0], actions.plan_or_fail), bound=work[0].bound)
    with pytest.raises(ValueError, match="Secret"):
        worker_documents.order_text(whole)


def test_a_worker_has_its_own_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = prepared(tmp_path)[0]

    def report() -> HostReport:
        return worker_documents.read_answer(job.bound, answer_of(remote_work.order(job, password)))

    assert report().facts == {"password": "none"}
    (tmp_path / "sudo").write_text("opensesame\n")
    (tmp_path / "sudo").chmod(0o600)
    monkeypatch.setenv(remote_work.PASSWORD_FILE, str(tmp_path / "sudo"))
    assert report().facts == {"password": "(secret)"}
    monkeypatch.setenv(remote_work.PASSWORD_FILE, str(tmp_path / "nowhere"))
    error = report().error
    assert error is not None
    assert "nowhere, from which a secret comes, cannot be read" in error.found
    assert error.fix == f"on the worker: set {remote_work.PASSWORD_FILE} to a file that it can read"


def password(job: HostJob) -> Iterator[StageResult]:
    """Yields the password for sudo."""
    assert isinstance(job.run.transport, Ssh)
    asker = job.run.transport.ask_password
    yield FactsResult({"password": asker("one") if asker else "none"})


def test_a_lost_worker_is_said_and_the_command_ends(tmp_path: Path) -> None:
    work = prepared(tmp_path)
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        fleet_pool.run_hosts(work, dying, pool)
    assert work[0].report.error is None or "gave no answer" in str(work[0].report.error)
    assert "the worker that had it gave no answer" in str(work[1].report.error)
    assert [one.report.exit_code for one in work[1:]] == [1, 1]


def test_an_act_that_cannot_be_sent_is_said(tmp_path: Path) -> None:
    work = prepared(tmp_path)
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        fleet_pool.run_hosts(work, lambda _job: (), pool)
    assert "a function of a module" in str(work[0].report.error)


def test_the_controller_remembers_what_workers_saw(tmp_path: Path, executor: Executor | None) -> None:
    """A worker gets the baseline of its host from the history; its report returns the next baseline to the history."""
    work = prepared(tmp_path)
    for expected_mib in (2048, 4096):
        if expected_mib == 2048:
            past = plain(Past(1024, 1, 8, ("A1 1024 MiB",), loaded_c={"GPU-1": 61.0}))
            recorded = RecordedMachines(
                tuple(
                    RecordedMachine(number, one.host.name, one.host.address, MachineIdentity(), False, baseline=past)
                    for number, one in enumerate(work)
                )
            )
            for one in work:
                one.run.recorded = recorded
        else:
            host_job.load_recorded(work)
        fleet_pool.run_hosts(work, compared, executor)
        for one in work:
            assert one.report.error is None
            assert one.report.baseline == Past(expected_mib, 1, 8, ("A1 1024 MiB",), loaded_c={"GPU-1": 61.0})
        with History.open() as history:
            history.record(json_document.document("verify", f"r{expected_mib}", 0, None, [one.report for one in work]))


def test_an_unreadable_history_is_no_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "history.sqlite").write_text("no database")
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))
    work = prepared(tmp_path)
    host_job.load_recorded(work)
    assert [one.run.earlier for one in work] == [None] * 3
