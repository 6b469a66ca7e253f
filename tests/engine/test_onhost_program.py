"""A program that runs on a host leaves nothing there, even if it did not start, and touches no other program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from rigwright.core.command import Command, Result
from rigwright.core.errors import HostError, Unreachable
from rigwright.engine import onhost_program
from rigwright.engine.onhost_program import OnhostProgram

SYSTEMCTL = """#!/bin/sh
case $1 in
  show) cat "$STATE" 2>/dev/null || echo dead;;
  stop) echo "stopped" >>"$STATE.log"; rm -f "$STATE";;
esac
"""
SYSTEMD_RUN = """#!/bin/sh
[ -e "$STATE.refuses" ] && { echo "no room" >&2; exit 1; }
while [ "$1" != sh ]; do shift; done
echo running >"$STATE"; "$@"; echo exited >"$STATE"
"""
LOOKS = OnhostProgram("nccl_p2p.py", ["--quick"], 60, "test")


class Host:
    """This machine, with a temporary folder for /run and a systemd that runs a unit at once to its end."""

    round_trips = 0

    def __init__(self, folder: Path) -> None:
        self.run_folder, self.state = folder / "run", folder / "state"
        self.folder = self.run_folder / "rigwright-p2p"
        self.run_folder.mkdir()
        (folder / "bin").mkdir()
        for name, text in (("systemctl", SYSTEMCTL), ("systemd-run", SYSTEMD_RUN)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        self.env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "STATE": str(self.state)}
        self.connected = 0

    def connect(self, timeout_s: float = 0) -> None:  # noqa: ARG002
        self.connected += 1

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:  # noqa: ARG002
        return [self.one(cmd) for cmd in commands]

    def one(self, cmd: Command) -> Result:
        argv = [word.replace("/run/rigwright", f"{self.run_folder}/rigwright") for word in cmd.argv]
        done = subprocess.run(argv, input=cmd.stdin, capture_output=True, timeout=30, check=False, env=self.env)
        return Result(done.returncode, done.stdout, done.stderr)

    def ended(self) -> bool:
        """Returns whether no file and no unit is left."""
        return not list(self.run_folder.iterdir()) and not self.state.exists()


def test_a_document_and_then_nothing(tmp_path: Path) -> None:
    host, kept = Host(tmp_path), tmp_path / "kept"
    for name in ("a", "b"):
        (kept / name).mkdir(parents=True)
        (kept / name / f"lib{name}.so.1").touch()
    order = OnhostProgram(LOOKS.program, LOOKS.arguments, 60, "test", [f"{kept}/a", f"{kept}/b"])
    with onhost_program.run(host, order, print):  # type: ignore[arg-type]
        assert b'"schema"' in (host.folder / "document").read_bytes()
        links = {one.name: one.resolve() for one in (host.folder / "libraries").iterdir()}
        assert links == {"liba.so.1": kept / "a/liba.so.1", "libb.so.1": kept / "b/libb.so.1"}
    assert host.ended()
    assert (kept / "a/liba.so.1").exists()


def test_what_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / "state.refuses").touch()
    with pytest.raises(HostError, match="cannot be started: no room"), onhost_program.run(host, LOOKS, print):  # type: ignore[arg-type]
        raise AssertionError
    assert host.ended()


def test_another_one_is_left_alone(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.state.write_text("running\n")
    host.folder.mkdir()
    (host.folder / "owner").write_text("somebody\n")
    with pytest.raises(HostError, match="another test is running") as caught, onhost_program.run(host, LOOKS, print):  # type: ignore[arg-type]
        raise AssertionError
    assert caught.value.expected == "one test at a time"
    assert caught.value.fix == "wait until that test has ended, then the same command again"
    assert (host.folder / "owner").exists()
    assert not (tmp_path / "state.log").exists()


def test_a_connection_that_drops_while_it_starts(tmp_path: Path) -> None:
    class Dropping(Host):
        def one(self, cmd: Command) -> Result:
            result = super().one(cmd)
            if not self.connected:
                raise Unreachable("host", "the connection was lost")
            return result

    host = Dropping(tmp_path)
    with pytest.raises(Unreachable), onhost_program.run(host, LOOKS, print):  # type: ignore[arg-type]
        raise AssertionError
    assert host.connected == 1
    assert host.ended()


def test_what_runs_afterwards(tmp_path: Path) -> None:
    """It runs when the program has ended, and systemd is told to run it at the end of the unit; the file that watchers touch is there."""
    host = Host(tmp_path)
    run = tmp_path / "bin" / "systemd-run"
    run.write_text(run.read_text().replace("#!/bin/sh\n", '#!/bin/sh\nprintf "%s\\n" "$@" >"$STATE.words"\n', 1))
    order = OnhostProgram("nccl_p2p.py", ["--quick"], 60, "test", afterwards="limits_sweep.py restore --nonsense")
    with onhost_program.run(host, order, print):  # type: ignore[arg-type]
        log = (host.folder / "log").read_text()
        assert "limits_sweep.py: error: unrecognized arguments: --nonsense" in log
        assert (host.folder / "watched").exists()
    words = (tmp_path / "state.words").read_text().splitlines()
    (stop,) = [word for word in words if word.startswith("ExecStopPost=")]
    assert stop.endswith(f"/python3 {host.folder}/limits_sweep.py restore --nonsense")
    assert words[words.index(stop) - 1] == "-p"
    assert host.ended()
