"""`fleet.run_hosts` by any executor: what goes to a worker and comes back, what must not go, and a worker that is lost."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from rigwright import fleet, inventory, orders, playbook
from rigwright.errors import HostError, Unreachable
from rigwright.events import Connected, Event, Note
from rigwright.facts import os as system
from rigwright.fleet import Work
from rigwright.hostrun import Options
from rigwright.recorded import Recorded
from rigwright.shell import Command, Result, Secret
from rigwright.transport import Ssh

HOSTS = """all:
  hosts: {one: , two: , three: }
  vars: {ansible_user: ubuntu, ansible_become_password: hunter2, api_token: swordfish, ansible_ssh_private_key_file: %s}
"""
PLAY = "- name: P\n  hosts: all\n  tasks:\n    - name: Room\n      file.directory: {path: /srv/room}\n"


@pytest.fixture(params=["none", "threads", "processes"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor | None]:
    """Who does it: nobody in particular, threads, other processes."""
    if request.param == "none":
        yield None
        return
    made: Executor = ThreadPoolExecutor(2)
    if request.param == "processes":
        made = ProcessPoolExecutor(2, mp_context=get_context("forkserver"))
    with made:
        yield made


def prepared(folder: Path, told: list[Event] | None = None) -> list[Work]:
    """Three hosts that want a folder."""
    (folder / "key").write_text("")
    (folder / "hosts.yml").write_text(HOSTS % (folder / "key"))
    (folder / "play.yml").write_text(PLAY)
    found = inventory.read(folder / "hosts.yml")
    bound = [playbook.bind(folder / "play.yml", found, one) for one in found.select("all")]
    return fleet.prepare(bound, Options("run-1"), (told if told is not None else []).append)


def answers(name: str, cmd: Command) -> Result:
    """A host without the folder; its boot id is the process that asked and the host's name."""
    if cmd == system.boot_id.command:
        return Result(0, f"{os.getpid()} {name}\n".encode())
    return Result(1, b"", b"") if cmd == system.simulated.command else Result(0, b"absent\n")


def planned(one: Work) -> None:
    """As `fleet.plan`, on a host that answers from memory."""
    one.run.transport = Recorded(partial(answers, one.run.name))
    fleet.plan(one)
    one.run.emit(Note(one.run.name, "planned"))
    one.report.facts["seen by"] = str(one.run.value(system.boot_id))


def failing(one: Work) -> None:
    """Every host ends in another way."""
    if one.run.name == "one":
        raise Unreachable("one", "no login within 20 s", "a host that answers", "is it on?")
    if one.run.name == "two":
        raise HostError("two", "the disk is full", "room", "df -h")


def dying(one: Work) -> None:
    """The worker is gone with the host that it had."""
    if one.run.name == "two":
        os._exit(9)


def test_every_host_is_done_once_wherever_it_is_done(tmp_path: Path, executor: Executor | None) -> None:
    told: list[Event] = []
    work = prepared(tmp_path, told)
    fleet.run_hosts(work, planned, executor)
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
        assert one.report.host is one.bound.host
    fleet.run_hosts(work, planned, executor)
    assert [sum(isinstance(event, Connected) for _, event in one.report.events) for one in work] == [1, 1, 1]
    assert all(
        later >= earlier
        for (earlier, _), (later, _) in zip(work[0].report.events, work[0].report.events[1:], strict=False)
    )


def test_a_failure_is_the_hosts_own_and_comes_back_whole(tmp_path: Path, executor: Executor | None) -> None:
    work = prepared(tmp_path)
    fleet.run_hosts(work, failing, executor)
    assert [one.report.status for one in work] == ["unreachable", "failed", "not_attempted"]
    assert [one.report.exit_code for one in work] == [3, 1, 0]
    error = work[0].report.error
    assert isinstance(error, Unreachable)
    assert (error.where, error.found, error.wanted, error.todo) == (
        "one", "no login within 20 s", "a host that answers", "is it on?",
    )  # fmt: skip
    fleet.run_hosts(work, planned, executor)
    assert [one.report.status for one in work] == ["unreachable", "failed", "pending"]


def test_nothing_secret_is_in_an_order(tmp_path: Path) -> None:
    work = prepared(tmp_path)
    order = orders.order(work[0], fleet.plan)
    sent = pickle.dumps(order)
    assert b"hunter2" not in sent
    assert b"swordfish" not in sent
    assert order.bound.host.variables["ansible_user"] == "ubuntu"
    assert work[0].bound.host.variables["ansible_become_password"] == Secret("hunter2")
    with pytest.raises(TypeError, match="a secret is not sent"):
        pickle.dumps(work[0].bound)


def test_a_worker_has_its_own_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (order,) = [orders.order(one, password) for one in prepared(tmp_path)[:1]]
    assert orders.done(order).facts == {"password": "none"}
    (tmp_path / "sudo").write_text("opensesame\n")
    monkeypatch.setenv(orders.PASSWORD_FILE, str(tmp_path / "sudo"))
    assert orders.done(order).facts == {"password": "opensesame"}
    monkeypatch.setenv(orders.PASSWORD_FILE, str(tmp_path / "nowhere"))
    assert "nowhere cannot be read" in str(orders.done(order).error)


def password(one: Work) -> None:
    """What sudo would be answered."""
    assert isinstance(one.run.transport, Ssh)
    asker = one.run.transport._ask
    one.report.facts = {"password": asker("one") if asker else "none"}


def test_a_lost_worker_is_said_and_the_command_ends(tmp_path: Path) -> None:
    work = prepared(tmp_path)
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        fleet.run_hosts(work, dying, pool)
    assert work[0].report.error is None or "gave no answer" in str(work[0].report.error)
    assert "the worker that had it gave no answer" in str(work[1].report.error)
    assert [one.report.exit_code for one in work[1:]] == [1, 1]


def test_an_act_that_cannot_be_sent_is_said(tmp_path: Path) -> None:
    work = prepared(tmp_path)
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        fleet.run_hosts(work, lambda one: None, pool)  # noqa: ARG005
    assert "pickle" in str(work[0].report.error)
