"""A program that runs on a host leaves nothing there, even if it did not start, and touches no other program."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from rigwright.core.command import Command, Result
from rigwright.core.errors import HostError, Unreachable
from rigwright.engine import events, onhost_program, run_owner
from rigwright.engine.host_run import HostRun
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.facts import own_programs
from rigwright.inventory.model import Host as InventoryHost
from tests.host_runs import host_run
from tests.paths import files

SYSTEMCTL = """#!/bin/sh
case $* in
  *Description*) printf 'Id=%s\nSubState=%s\nDescription=%s\n' rigwright-p2p.service "$(cat "$STATE")" \\
    "$(cat "$STATE.described")"
    [ ! -e "$STATE.ends" ] || rm "$STATE"; exit;;
esac
case $1 in
  show) cat "$STATE" 2>/dev/null || echo dead;;
  stop) echo "stopped" >>"$STATE.log"; rm -f "$STATE";;
esac
"""
SYSTEMD_RUN = """#!/bin/sh
[ -e "$STATE.refuses" ] && { echo "no room" >&2; exit 1; }
while [ "$1" != sh ]; do case $1 in --description=*) echo "${1#*=}" >"$STATE.described";; esac; shift; done
echo running >"$STATE"; "$@"; echo exited >"$STATE"
"""
LOOKS = OnhostProgram("nccl_p2p.py", ["--quick"], 60, "test")


class Host:
    """This machine, with a temporary folder for /run and a systemd that runs a unit at once to its end."""

    round_trips = 0
    acted = False
    warning = ""

    def __init__(self, folder: Path) -> None:
        self.run_folder, self.state, self.transient = folder / "run", folder / "state", folder / "transient"
        self.folder = self.run_folder / "rigwright-p2p"
        self.run_folder.mkdir()
        (folder / "bin").mkdir()
        for name, text in (("systemctl", SYSTEMCTL), ("systemd-run", SYSTEMD_RUN)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        self.env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "STATE": str(self.state)}
        self.connected = 0
        self.lines: list[str] = []

    def host_run(self) -> HostRun:
        """Returns a run with this host."""

        def sink(event: events.Event) -> None:
            if isinstance(event, (events.Note, events.OutputLine)):
                self.lines.append(event.text if isinstance(event, events.Note) else event.line)

        return host_run(self, "2", InventoryHost("host", (), {}), sink)

    def has_at_work(self, program: OnhostProgram, owner: str) -> None:
        """A program of an earlier run is at work."""
        self.transient.mkdir()
        (self.transient / "rigwright-p2p.service").touch()
        limit_s, at_end = program.unit_limit_s, program.at_end
        words = own_programs.description(program.name, owner, limit_s, program.key, program.watched_s, at_end)
        since = int(float(Path("/proc/uptime").read_text().split()[0])) - 5
        Path(f"{self.state}.described").write_text(f"{words}; {since}\n")
        self.state.write_text("running\n")
        self.folder.mkdir()
        (self.folder / "owner").write_text("somebody\n")
        (self.folder / "watched").touch()

    def connect(self, timeout_s: float = 0) -> None:  # noqa: ARG002
        self.connected += 1

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:  # noqa: ARG002
        return [self.one(cmd) for cmd in commands]

    def one(self, cmd: Command) -> Result:
        argv = [word.replace("/run/rigwright", f"{self.run_folder}/rigwright") for word in cmd.argv]
        argv = [word.replace("/run/systemd/transient", str(self.transient)) for word in argv]
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
    with onhost_program.run(host.host_run(), order):
        assert b'"schema"' in (host.folder / "document").read_bytes()
        links = {one.name: one.resolve() for one in (host.folder / "libraries").iterdir()}
        assert links == {"liba.so.1": kept / "a/liba.so.1", "libb.so.1": kept / "b/libb.so.1"}
    assert host.ended()
    assert (kept / "a/liba.so.1").exists()


def test_what_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / "state.refuses").touch()
    refused(host, "cannot be started: no room")
    assert host.ended()


def refused(host: Host, words: str) -> HostError:
    """Returns the error with which the program LOOKS does not begin."""
    with pytest.raises(HostError, match=words) as caught, onhost_program.run(host.host_run(), LOOKS):
        raise AssertionError
    return caught.value


def ended_owner() -> str:
    """Returns an owner that was a process of this machine, which has ended."""
    return run_owner.owner("1", "host").replace(f" {os.getpid()} ", " 4194399 ")


def test_another_one_is_left_alone_and_named(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.has_at_work(LOOKS, run_owner.owner("1", "host"))
    error = refused(host, r"at work is your test of \d\d:\d\d \(run 1\), which ends by \d\d:\d\d \(14\d s\)\n")
    assert error.fix == "wait until it has ended; then the same command again"
    assert (host.folder / "owner").read_text() == "somebody\n"
    assert not (tmp_path / "state.log").exists()


def test_one_that_nothing_describes_is_left_alone(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.state.write_text("running\n")
    host.folder.mkdir()
    (host.folder / "owner").write_text("somebody\n")
    assert refused(host, "another test is running").expected == "one test at a time"
    assert host.state.exists()


def test_the_same_one_whose_command_has_ended_is_continued(tmp_path: Path) -> None:
    """Its document is read, and it is not started again; then nothing is left."""
    host = Host(tmp_path)
    host.has_at_work(LOOKS, ended_owner())
    (host.folder / "document").write_text("of the first run")
    (host.folder / "log").write_text("pair 0-1\n")
    (host.folder / "result").write_text("0 a-boot\n")
    with onhost_program.run(host.host_run(), LOOKS):
        assert (host.folder / "document").read_text() == "of the first run"
        (program,) = own_programs.at_work.parse(host.one(own_programs.at_work.command))
        assert program.run == "2"
        assert run_owner.alive(program.owner), "a third command does not take it over"
    assert host.lines[0].startswith("continues your test of ")
    assert host.lines[1:] == ["pair 0-1"]
    assert not list(host.run_folder.iterdir())
    assert not host.state.exists()


def test_a_different_one_whose_command_has_ended_is_waited_for(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.has_at_work(
        OnhostProgram("limits_sweep.py", [], 600, "sweep", at_end="puts 285 W back", watched_s=120), ended_owner()
    )
    Path(f"{host.state}.ends").touch()
    with onhost_program.run(host.host_run(), LOOKS):
        assert b'"schema"' in (host.folder / "document").read_bytes()
    assert re.fullmatch(
        r"waits for your sweep of [\d:]+ \(run 1\), which ends by [\d:]+ \(1[12]\d s\) and then puts 285 W back;"
        r" at once with: sudo systemctl stop rigwright-p2p, on the host",
        host.lines[0],
    )
    assert host.ended()


def test_one_that_takes_long_is_named_with_the_way_to_end_it(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.has_at_work(OnhostProgram("stress.py", [], 86400, "stress"), ended_owner())
    refused(host, "sudo systemctl stop rigwright-p2p")
    assert host.state.exists()


def test_every_program_is_described(tmp_path: Path) -> None:
    """What starts a unit does it with the words that later commands know the program by."""
    host = Host(tmp_path)
    sweep = OnhostProgram("nccl_p2p.py", ["--quick"], 60, "test", at_end="puts 150/285 W back; $(reboot) 5%")
    with onhost_program.run(host.host_run(), sweep):
        pass
    described = Path(f"{host.state}.described").read_text()
    assert re.fullmatch(
        rf"rigwright; test; {re.escape(run_owner.owner('2', 'host'))}; {sweep.key}; 150; 0; "
        r"puts 150/285 W back_ _\(reboot\) 5_; \d+\n",
        described,
    )
    programs = files("rigwright/engine/*.py", "rigwright/features/*/*.py")
    starts = [path.name for path in programs if re.search(r"^systemd-run|begin \"", path.read_text(), re.M)]
    assert sorted(starts) == ["jobs.py", "onhost_program.py", "recorder.py"]
    assert not [path for path in programs if re.search(r"^systemd-run", path.read_text(), re.M)]


def test_a_connection_that_drops_while_it_starts(tmp_path: Path) -> None:
    class Dropping(Host):
        def one(self, cmd: Command) -> Result:
            result = super().one(cmd)
            if not self.connected:
                raise Unreachable("host", "the connection was lost")
            return result

    host = Dropping(tmp_path)
    with pytest.raises(Unreachable), onhost_program.run(host.host_run(), LOOKS):
        raise AssertionError
    assert host.connected == 1
    assert host.ended()


def test_what_runs_afterwards(tmp_path: Path) -> None:
    """It runs when the program has ended, and systemd is told to run it at the end of the unit; the file that watchers
    touch is there."""
    host = Host(tmp_path)
    run = tmp_path / "bin" / "systemd-run"
    run.write_text(run.read_text().replace("#!/bin/sh\n", '#!/bin/sh\nprintf "%s\\n" "$@" >"$STATE.words"\n', 1))
    order = OnhostProgram("nccl_p2p.py", ["--quick"], 60, "test", afterwards="limits_sweep.py restore --nonsense")
    with onhost_program.run(host.host_run(), order):
        log = (host.folder / "log").read_text()
        assert "limits_sweep.py: error: unrecognized arguments: --nonsense" in log
        assert (host.folder / "watched").exists()
    words = (tmp_path / "state.words").read_text().splitlines()
    (stop,) = [word for word in words if word.startswith("ExecStopPost=")]
    assert stop.endswith(f"/python3 {host.folder}/limits_sweep.py restore --nonsense")
    assert words[words.index(stop) - 1] == "-p"
    assert host.ended()
