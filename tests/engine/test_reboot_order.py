"""A run that was killed after it ordered a reboot: the next command waits for the host; any other unreachable host is
an error at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rigwright.core.command import Command, Result
from rigwright.core.errors import HostError, HostKeyRefused, Interrupted, NoRoot, Unreachable
from rigwright.engine.boot import order as reboot_order, wait as boot_wait
from rigwright.engine.events import Event
from rigwright.inventory.model import Host
from tests.host_runs import host_run
from tests.ssh.fake_transport import FakeTransport

HOST = Host("box/1", (), {"ansible_host": "192.0.2.7"})


class Box(FakeTransport):
    """A host that answers as a list says: `down`, `same boot`, `going down`, `ends` (no answer), `refuses` and `refuses
    in the trial` (root), `up` (another boot), or an error; the last one for ever."""

    def __init__(self, *states: str | Exception) -> None:
        super().__init__(self.answer)
        self.states, self.connections = list(states), 0

    def connect(self, timeout_s: float = 0) -> None:  # noqa: ARG002
        self.connections += 1
        if len(self.states) > 1 and self.connections > 1:
            self.states.pop(0)
        if isinstance(self.states[0], Exception):
            raise self.states[0]
        if self.states[0] == "down":
            raise Unreachable("box", "the connection was refused")

    def answer(self, cmd: Command) -> Result:
        if self.states[0] in ("refuses", "refuses in the trial") and not self.as_user:
            raise NoRoot("box", "sudo refused: ")
        if self.states[0] == "ends":
            raise HostError("box", "the host's shell did not answer as a shell does")
        if "/proc/cmdline" in str(cmd):
            return Result(
                0, b"ro rigwright.trial=20261122-1 \n" if self.states[0] == "refuses in the trial" else b"ro\n"
            )
        if "list-units" not in str(cmd):
            return Result(0, b"")
        return Result(
            0 if self.states[0] == "going down" else 1,
            b"boot-1\n" if self.states[0] in ("same boot", "going down") else b"boot-2\n",
        )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Event]:
    """Records a reboot, and returns the events of this test; no second is waited for."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(reboot_order.time, "sleep", lambda _s: None)
    reboot_order.record(HOST, "20261122-1", "boot-1", 900)
    return []


def connects(box: Any, told: list[Event], stopping: bool = False) -> None:
    """Connects to a host with this transport."""
    run = host_run(box, "20261122-2", HOST, told.append)
    if stopping:
        run.state.stopping.set()
    reboot_order.connect(run)


def test_it_is_waited_for(told: list[Event]) -> None:
    box = Box("going down", "down", "down", "up")
    connects(box, told)
    assert box.connections == 4
    assert [getattr(event, "text", "") for event in told] == [
        "run 20261122-1 reboots it; waiting up to 15 minutes until it is back"
    ]
    assert "is-system-running --wait" in str(box.ran[-1])
    with pytest.raises(Unreachable):
        connects(Box("down"), told)


@pytest.mark.parametrize(
    "states",
    [
        ("ends", "ends", "ends", "ends", "down", "up"),
        ("down", HostKeyRefused("box", "the host key has changed"), "up"),
        ("same boot", "same boot", "going down", "down", "up"),
    ],
    ids=["the shutdown ends a session", "another host key, of a boot that goes back", "no order yet by a killed run"],
)
def test_it_is_waited_for_in_spite_of(told: list[Event], states: tuple[str | Exception, ...]) -> None:
    box = Box(*states)
    connects(box, told)
    assert box.connections == len(states)


def test_root_that_is_refused_is_asked_for_again(told: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of sudo may be late; in a boot that stays that is an error after a while, and one that is tried is
    followed by another."""
    connects(Box("down", *["refuses"] * 20, "up"), told)
    began, now = time.time(), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(reboot_order.time, "sleep", sleep)
    monkeypatch.setattr(reboot_order.time, "time", lambda: began + now[0])
    reboot_order.record(HOST, "20261122-1", "boot-1", 900)
    with pytest.raises(NoRoot, match="sudo refused"):
        connects(Box("down", "refuses"), told)
    assert boot_wait.SETTLES_S <= now[0] < boot_wait.SETTLES_S + 20
    reboot_order.record(HOST, "20261122-1", "boot-1", 900)
    connects(Box("down", *["refuses in the trial"] * 100, "up"), told)


def test_a_person_is_asked_for_the_password_and_not_waited_for(told: list[Event]) -> None:
    box = Box("down", "refuses")
    box.ask_password = lambda _name: "secret"
    connects(box, told)
    assert box.connections == 2


@pytest.mark.parametrize(("state", "later_s"), [("up", 0), ("same boot", reboot_order.ORDER_S + 1)])
def test_a_host_that_is_back_or_never_got_the_order_is_not_waited_for(
    told: list[Event], monkeypatch: pytest.MonkeyPatch, state: str, later_s: float
) -> None:
    began = time.time()
    monkeypatch.setattr(reboot_order.time, "time", lambda: began + later_s)
    box = Box(state)
    connects(box, told)
    assert (box.connections, told) == (1, [])


def _record(host: Host, limit_s: float) -> Callable[[], object]:
    return lambda: reboot_order.record(host, "20261122-1", "boot-1", limit_s)


@pytest.mark.parametrize(
    "other",
    [
        lambda: reboot_order._path(HOST).unlink(),
        _record(Host("box/1", (), {"ansible_host": "192.0.2.8"}), 900),
        _record(HOST, -1),
        lambda: reboot_order.forget(HOST),
        _record(HOST, 2 * reboot_order.LONGEST_S),
        lambda: reboot_order._path(HOST).write_text("{"),
    ],
    ids=["no record", "another address", "overdue", "back", "a changed clock", "damaged"],
)
def test_other_hosts_are_unreachable_at_once(told: list[Event], other: Callable[[], object]) -> None:
    other()
    box = Box("down")
    with pytest.raises(Unreachable):
        connects(box, told)
    assert (box.connections, told) == (1, [])


def test_it_ends(told: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Interrupted):
        connects(Box("down"), told, stopping=True)
    began, clock = time.time(), iter(range(0, 10**6, 60))
    monkeypatch.setattr(reboot_order.time, "time", lambda: began + next(clock))
    with pytest.raises(HostKeyRefused):
        connects(Box("down", HostKeyRefused("box", "the host key has changed")), told)


def test_the_order_can_be_recognized(told: list[Event]) -> None:
    assert "--unit=rigwright-reboot-20261122-1" in reboot_order.order("20261122-1").argv
    assert "rigwright-reboot-*" in str(reboot_order._GOES_DOWN)
    assert told == []
