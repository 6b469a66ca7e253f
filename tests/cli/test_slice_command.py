"""The command that a worker runs for a slice: it ends when it is told to, and does nothing twice."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import distributed
import pytest

from rigwright import inventory
from rigwright.cli import slice_command
from rigwright.cli.slice_command import PASSWORD_FILE, SliceCommand, SliceOrder
from rigwright.core.errors import InputError
from rigwright.engine import playbook
from rigwright.fleet import rollout
from rigwright.inventory import secret_sources
from rigwright.inventory.model import Host
from tests.fleet import dask_site, disk_hosts, fake_fleet
from tests.fleet.disk_hosts import DiskHost
from tests.paths import ROOT

pytestmark = pytest.mark.timeout(120)
RUN = "20261126-100000-00000001"
HOSTS = ("gpu1", "gpu2", "gpu3", "gpu4")


@pytest.fixture
def order(tmp_path: Path) -> SliceOrder:
    """Returns the order to provision four hosts that each need a folder."""
    (tmp_path / "hosts.yml").write_text("gpu: {hosts: {" + ", ".join(f"{name}: " for name in HOSTS) + "}}\n")
    (tmp_path / "play.yml").write_text(fake_fleet.PLAY)
    found = inventory.read(tmp_path / "hosts.yml")
    bound = [playbook.bind(tmp_path / "play.yml", found, host) for host in found.select("all")]
    hosts = {"all": {"hosts": {name: {} for name in HOSTS}, "children": {"gpu": {"hosts": {}}}}}
    return {
        "command": "rigwright.cli.options:ProvisionOptions",
        "options": {
            "yes": True, "playbook": "/c/play.yml", "inventory": "/c/hosts.yml", "json": "-", "host": ",".join(HOSTS),
        },
        "files": {"/c/play.yml": fake_fleet.PLAY, "/c/hosts.yml": json.dumps(hosts)},
        "machines": {},
        "runs": [RUN],
        "reboots": 1,
        "lost": "",
        "most_failed": 4,
        "digests": {one.host.name: rollout.digest(one) for one in bound},
        "announced": {name: [] for name in HOSTS},
    }  # fmt: skip


class Worker:
    """A worker of Dask as far as `run_slice` uses it. `events` are those of its hosts; `task`: its work."""

    def __init__(self) -> None:
        self.task = SimpleNamespace(state="executing")
        self.state = SimpleNamespace(tasks={"key": self.task})

    def get_current_task(self) -> str:
        """Returns the key of its work."""
        return "key"


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """Returns a worker whose hosts are folders, two of them at work at a time."""
    made = Worker()
    monkeypatch.setattr(distributed, "get_worker", lambda: made)
    (tmp_path / "beginning").mkdir()
    (tmp_path / "beginning" / "sitecustomize.py").write_text(dask_site.BEGINNING.format(0))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'beginning'}:{ROOT}")
    monkeypatch.setenv(disk_hosts.PLACE, str(tmp_path / "hosts"))
    monkeypatch.setenv(f"{disk_hosts.PLACE}_AT_ONCE", "2")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in HOSTS:
        DiskHost(tmp_path / "hosts" / name, {})
    return made


def made(folder: Path) -> dict[str, int]:
    """Returns how often each host was changed, by its own notes."""
    files = {name: folder / "hosts" / name / "state" / "made" for name in HOSTS}
    return {name: len(file.read_text().split()) if file.exists() else 0 for name, file in files.items()}


def at_work(folder: Path, name: str) -> bool:
    """Returns whether the step of a host has begun, by its own log."""
    log = folder / "hosts" / name / "state" / "log"
    return log.exists() and "Room" in log.read_text()


def meanwhile(order: SliceOrder, act: Callable[[], object], reached: Callable[[], bool]) -> dict[str, Any]:
    """Runs the slice of an order, and `act` once something is reached; returns the document."""
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(slice_command.run_slice(RUN, json.dumps(order))))
    thread.start()
    until = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.01)
    act()
    thread.join(60)
    document: dict[str, Any] = json.loads(answers[0])
    return document


def statuses(document: dict[str, Any]) -> Sequence[str]:
    """Returns the statuses of the hosts."""
    return [host["status"] for host in document["hosts"].values()]


@pytest.mark.usefixtures("worker")
def test_an_order_that_runs_twice_changes_each_host_once(
    order: SliceOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tempfile.py").write_text("raise SystemExit('a module of the current folder')\n")
    first, second = (json.loads(slice_command.run_slice(RUN, json.dumps(order))) for _ in range(2))
    assert (statuses(first), statuses(second)) == (["changed"] * 4, ["ok"] * 4)
    assert made(tmp_path) == dict.fromkeys(HOSTS, 1)
    assert (first["run"], first["exit_code"], first["slice"]["exit_codes"]) == (RUN, 0, {})
    assert "gpu1: 1 change, no check was made" in first["slice"]["text"]
    assert "Plan: " not in first["slice"]["text"], "it was shown with the question"
    assert str(tmp_path) not in json.dumps(first).replace(str(tmp_path / "hosts"), "")


@pytest.mark.usefixtures("worker")
def test_the_command_of_a_feature_is_found(order: SliceOrder) -> None:
    options = {name: order["options"][name] for name in ("inventory", "json", "host")}
    order["options"] = {**options, "cmd": "uptime", "timeout_s": "60"}
    order["command"] = "rigwright.features.fleet_run.options:FleetRunOptions"
    order["digests"] = dict.fromkeys(HOSTS, rollout.digest(playbook.BoundPlaybook(Host("one", (), {}), (), ())))
    document = json.loads(slice_command.run_slice(RUN, json.dumps(order)))
    assert (document["command"], statuses(document)) == ("fleet.run", ["ok"] * 4)
    assert {host["ran"]["code"] for host in document["hosts"].values()} == {0}


@pytest.mark.usefixtures("worker")
def test_an_interruption_finishes_what_has_begun(order: SliceOrder, tmp_path: Path) -> None:
    def act() -> None:
        slice_command.stop("another run", "interrupt")
        time.sleep(0.15)  # the step is in its critical section, which lasts 0.4 s
        slice_command.stop(RUN, "interrupt")

    begun = meanwhile(order, act, lambda: at_work(tmp_path, "gpu1"))
    assert begun["exit_code"] == 130
    assert set(statuses(begun)) == {"changed", "not_attempted"}
    changed = {name for name, host in begun["hosts"].items() if host["status"] == "changed"}
    assert made(tmp_path) == {name: int(name in changed) for name in HOSTS}


@pytest.mark.parametrize("cause", ["told", "the controller is gone"])
def test_no_further_host_is_begun(
    order: SliceOrder, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    monkeypatch.setattr(slice_command, "WATCH_S", 0.05)

    def act() -> None:
        if cause == "told":
            slice_command.stop(RUN, "no more")
        else:
            worker.task.state = "cancelled"

    document = meanwhile(order, act, lambda: any(at_work(tmp_path, name) for name in HOSTS))
    assert document["exit_code"] == 0
    assert sorted(set(statuses(document))) == ["changed", "not_attempted"]
    assert sum(made(tmp_path).values()) == statuses(document).count("changed")


@pytest.mark.usefixtures("worker")
def test_what_is_no_order_is_answered_with_a_text(capfd: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(slice_command.run_slice("run", "no order"))
    assert answer == {"failed": "its command ended with 1, without a document"}
    assert "JSONDecodeError" in capfd.readouterr().err, "the worker's log says why"


def test_an_error_of_the_worker_itself_is_answered_with_a_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise ValueError("no worker found")

    monkeypatch.setattr(distributed, "get_worker", none)
    assert json.loads(slice_command.run_slice("run", "{}")) == {"failed": "ValueError: no worker found"}
    assert "Traceback" in capsys.readouterr().err


def test_a_worker_has_its_own_password(order: SliceOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = io.StringIO()
    command = SliceCommand(order, tmp_path / "place", feed)

    def password() -> str:
        secret_sources.forget()
        (host,) = inventory.read(Path(command.given()["inventory"])).select("gpu1")
        found = host.variables.get("ansible_become_password")
        return str(found.reveal()) if found else ""

    assert password() == ""
    (tmp_path / "sudo").write_text("opensesame\n")
    (tmp_path / "sudo").chmod(0o600)
    monkeypatch.setenv(PASSWORD_FILE, str(tmp_path / "sudo"))
    assert password() == "opensesame"
    (tmp_path / "sudo").chmod(0o644)
    with pytest.raises(InputError, match="has the mode 0644") as caught:
        password()
    command.end({"error": str(caught.value)}, [])
    assert f"{PASSWORD_FILE} of the worker: {tmp_path / 'sudo'} has the mode 0644" in feed.getvalue()
