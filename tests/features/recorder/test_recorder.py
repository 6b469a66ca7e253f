"""A recorder that is at work already: named, gone on with, or replaced."""

from __future__ import annotations

import os

import pytest

from rigwright.core.command import Command, Result
from rigwright.core.errors import HostError
from rigwright.engine import run_owner
from rigwright.facts import own_programs
from rigwright.features.recorder import recorder
from rigwright.features.recorder.facts import FOLDERS
from tests.host_runs import host_run
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
        self.run = host_run(transport, "2")

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
        if "/stop" in text:
            self.does.append("stops")
            self.running = False
        return Result(0, b"")


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (At(ALIVE, "idle", beside=True), r"at work is your recorder of \d\d:\d\d \(run 1\)"),  # its command follows it
        (At(ENDED, "", beside=False), "sudo systemctl stop rigwright-recorder"),  # somebody wants its journal
    ],
)
def test_a_recorder_in_use_is_named(host: At, message: str) -> None:
    with pytest.raises(HostError, match=message):
        recorder.start(host.run, 600, idle_s=120)


@pytest.mark.parametrize(("beside", "run", "does"), [(True, "1", "starts"), (False, "2", "starts stops starts")])
def test_that_of_a_stress_goes_on_with_it_and_is_replaced_after_it(beside: bool, run: str, does: str) -> None:
    host = At(ENDED, "idle", beside=beside)
    assert recorder.start(host.run, 600, idle_s=120) == f"{FOLDERS}/{run}"
    assert host.does == does.split()
