"""A recorder that is at work already: named, gone on with, or replaced."""

from __future__ import annotations

import os
import threading

import pytest

from rigwright.core.command import Command, Result
from rigwright.core.errors import HostError
from rigwright.engine import run_owner
from rigwright.engine.host_run import HostRun, Options, RunState
from rigwright.facts import own_programs
from rigwright.features.recorder import recorder
from rigwright.features.recorder.facts import FOLDERS
from rigwright.inventory.model import Host
from tests.ssh.fake_transport import FakeTransport

ALIVE = run_owner.owner("1", "h")
ENDED = ALIVE.replace(f" {os.getpid()} ", " 4194399 ")


class At:
    """A host on which a recorder is at work, with `beside` the stress too. `name`: the folder of a recorder that
    starts, "" for none."""

    def __init__(self, owner: str, key: str, *, beside: bool) -> None:
        programs = [("rigwright-recorder", "recorder", key), ("rigwright-p2p", "stress", "a1")][: 1 + beside]
        units = [
            f"Id={unit}.service\nSubState=running\nDescription={own_programs.description(name, owner, 900, key)}; 5\n\n"
            for unit, name, key in programs
        ]
        self.shown, self.running, self.does = "".join(units) + "up 10\n", True, list[str]()
        transport = FakeTransport(self.answer)
        self.run = HostRun(Host("h", (), {}), transport, Options("2"), lambda _: None, RunState(threading.Semaphore()))  # type: ignore[arg-type]

    def answer(self, cmd: Command) -> Result:
        """Returns what the host says to a script."""
        text = cmd.argv[2] if cmd.argv[0] == "sh" else ""
        if cmd == own_programs.at_work.command:
            return Result(0, self.shown.encode())
        if "another recording" in text:
            self.does.append("starts")
            return Result(75, b"", b"another recording is at work") if self.running else Result(0, b"2\n")
        if text.startswith("cat "):
            return Result(0, b"1\n")
        if '"/stop"' in text or "/stop" in text:
            self.does.append("stops")
            self.running = False
        return Result(0, b"")


def test_one_that_a_command_follows_is_named() -> None:
    host = At(ALIVE, "idle", beside=True)
    with pytest.raises(HostError, match=r"at work is your recorder of \d\d:\d\d \(run 1\)"):
        recorder.start(host.run, 600, idle_s=120)


def test_one_whose_journal_somebody_wants_is_named() -> None:
    with pytest.raises(HostError, match="sudo systemctl stop rigwright-recorder"):
        recorder.start(At(ENDED, "", beside=False).run, 600, idle_s=120)


def test_that_of_a_stress_that_is_continued_goes_on() -> None:
    host = At(ENDED, "idle", beside=True)
    assert recorder.start(host.run, 600, idle_s=120) == f"{FOLDERS}/1"
    assert host.does == ["starts"]


def test_that_of_a_stress_that_has_ended_is_replaced() -> None:
    host = At(ENDED, "idle", beside=False)
    assert recorder.start(host.run, 600, idle_s=120) == f"{FOLDERS}/2"
    assert host.does == ["starts", "stops", "starts"]
