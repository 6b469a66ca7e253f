"""Many hosts at once: slow ones keep no others waiting, connections and facts do not stay, and every host ends once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigwright.core.command import Result
from rigwright.core.host_result import HostResult
from rigwright.engine.host_run import HostRun, Options
from rigwright.engine.playbook import BoundPlaybook
from rigwright.engine.report import ConnectResult, FactsResult
from rigwright.facts import system
from rigwright.fleet import host_runs, pool
from rigwright.fleet.pool import Places
from rigwright.inventory.model import Host
from rigwright.ssh import open_transport
from tests.ssh.fake_transport import FakeTransport


class Endpoint(FakeTransport):
    """A host that answers; counts how often it is connected to and closed."""

    def __init__(self) -> None:
        super().__init__(lambda cmd: Result(0, b"b00d1d\n" if cmd == system.boot_id.command else b""))
        self.connected = self.closed = 0

    def connect(self, timeout_s: float = 20) -> None:  # noqa: ARG002
        self.connected += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def endpoints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Endpoint]:
    """The hosts by name, filled by `prepared`."""
    made: dict[str, Endpoint] = {}
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(open_transport, "open_transport", lambda host, *_: made.setdefault(host.name, Endpoint()))
    return made


def prepared(count: int) -> list[HostRun]:
    hosts = [Host(f"h{number:03}", (), {}) for number in range(count)]
    return host_runs.prepare([BoundPlaybook(host, (), ()) for host in hosts], Options("20261125-000000-00000000"), str)


def look(run: HostRun) -> Iterator[HostResult]:
    yield FactsResult({"system.boot_id": run.value(system.boot_id)})


def test_a_slow_host_gives_its_place_and_takes_none_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SLOW_S", 600)
    places, go_on, at_work = Places(2, 1), threading.Event(), []

    def work(host: str) -> None:
        with places.one(host):
            at_work.append(host)
            go_on.wait(60)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcde"]
    for thread in threads:
        thread.start()
    _until(lambda: len(at_work) == 2)
    places.give_up_slow()
    assert len(at_work) == 2, "no host is slow yet"
    monkeypatch.setattr(pool, "SLOW_S", 0)
    for _ in range(3):
        places.give_up_slow()
    _until(lambda: len(at_work) == 3)
    time.sleep(0.05)
    places.give_up_slow()
    time.sleep(0.05)
    assert len(at_work) == 3, "one slow host at most"
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert sorted(at_work) == list("abcde")
    assert [places._free.acquire(blocking=False) for _ in range(3)] == [True, True, False]


def _until(true: object) -> None:
    end = time.monotonic() + 60
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.005)


def test_hosts_that_hang_keep_no_others_waiting(
    monkeypatch: pytest.MonkeyPatch, endpoints: dict[str, Endpoint]
) -> None:
    monkeypatch.setattr(pool, "SLOW_S", 0.1)
    monkeypatch.setattr(pool, "WORKERS", 2)
    runs, others_done, hanging = prepared(12), threading.Event(), ("h000", "h001", "h002")
    ended: list[str] = []

    def action(run: HostRun) -> Iterator[HostResult]:
        if run.host.name in hanging:
            assert others_done.wait(20)
        yield from look(run)

    def note(run: HostRun) -> None:
        ended.append(run.host.name)
        if len(ended) == 12 - len(hanging):
            others_done.set()

    pool.run_hosts(runs, action, reads=True, on_end=note)
    assert set(ended[-3:]) == set(hanging)
    assert sorted(ended) == sorted(endpoints), "each host ends once"
    assert {run.report.status for run in runs} == {"ok"}


@pytest.mark.parametrize("last", [False, True])
def test_of_many_hosts_no_connection_stays_open(
    monkeypatch: pytest.MonkeyPatch, endpoints: dict[str, Endpoint], last: bool
) -> None:
    monkeypatch.setattr(pool, "MOST_OPEN", 3)
    for count, closed in ((3, 0), (4, 1)):
        endpoints.clear()
        runs = prepared(count)
        for run in runs:
            run.to_connect = True
        pool.run_hosts(runs, look, last=last)
        assert {(one.connected, one.closed) for one in endpoints.values()} == {(1, closed)}
        assert {bool(run.store.known) for run in runs} == {not (last and closed)}
        assert {run.report.facts["system.boot_id"] for run in runs} == {"b00d1d"}
        assert all(run.report.last(ConnectResult).seconds > 0 for run in runs)
        pool.run_hosts(runs, look)
        assert {one.connected for one in endpoints.values()} == {1}, "a later action connects when it needs the host"
