"""SIGTERM and SIGHUP end a run as Ctrl-C does: changes in progress are finished, and the JSON document and the history
tell how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rigwright.core.process import children
from rigwright.fleet import dask_workers
from tests.cli import workers_here
from tests.cli.run_command import run_command
from tests.fleet import fake_fleet
from tests.security.fleet_program import Provision

pytestmark = pytest.mark.timeout(180)
ALL = ("gpu1", "gpu2", "gpu3")
SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
MORE = "    - name: Other\n      file.directory: {path: /srv/other}\n"


@SIGNALS
def test_the_first_one_finishes_what_was_begun(tmp_path: Path, number: signal.Signals) -> None:
    run = Provision(tmp_path)
    run.until_begun()
    with (tmp_path / "play.yml").open("a") as play:
        play.write(MORE)  # for the next command
    run.process.send_signal(number)
    line = ""
    while "finishing 'Room', which must not be interrupted" not in line:
        assert run.process.stdout
        line = run.process.stdout.readline()
        assert line, "it ended"
    run.go()
    out, errors = run.process.communicate(timeout=90)
    assert (run.process.returncode, errors) == (130, "")
    assert run.statuses == dict.fromkeys(ALL, "changed"), out
    assert run.document["exit_code"] == 130
    assert "interrupted\n  done: gpu[1:3]\n  fix: run the same command again; it continues from there\n" in out


@SIGNALS
def test_the_second_one_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    """Also when the work on a host does not notice that its connection is closed. What was begun goes on there, and is
    told so."""
    (tmp_path / "deaf").touch()
    (tmp_path / "each").touch()
    run = Provision(tmp_path)
    run.until_begun()
    run.process.send_signal(signal.SIGINT)
    line = ""
    while "finishing 'Room'" not in line:
        assert run.process.stdout
        line = run.process.stdout.readline()
    began = time.monotonic()
    run.process.send_signal(number)
    out, errors = run.process.communicate(timeout=90)
    assert time.monotonic() - began < 60
    assert (run.process.returncode, errors) == (130, "")
    assert run.statuses == dict.fromkeys(ALL, "failed")
    for name in ALL:
        error = run.document["hosts"][name]["error"]
        assert error["found"] == "left in the middle of 'Room', which continues on the host"
    assert "  not done: gpu[1:3]\n" in out


def test_signals_that_come_together_are_one(tmp_path: Path) -> None:
    """A shell whose terminal is closed passes SIGHUP on a second time; a service manager sends SIGTERM and SIGHUP."""
    run = Provision(tmp_path)
    run.until_begun()
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
        run.process.send_signal(number)
        time.sleep(0.05)
    run.go()
    assert run.end() == 130
    assert run.statuses == dict.fromkeys(ALL, "changed")


def test_nohup_goes_on(tmp_path: Path) -> None:
    run = Provision(tmp_path, 'nohup "$@"')
    run.until_begun()
    run.process.send_signal(signal.SIGHUP)
    run.go()
    assert run.end() == 0
    assert run.statuses == dict.fromkeys(ALL, "changed")


@SIGNALS
def test_one_at_the_question_changes_nothing(tmp_path: Path, number: signal.Signals) -> None:
    ours, theirs = pty.openpty()
    run = Provision(tmp_path, '"${@/--yes/--findings}"', stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    text = ""
    while "Make these changes? [y/N]" not in text:
        text += os.read(ours, 4096).decode()
    run.process.send_signal(number)
    assert run.end() == 130
    os.close(ours)
    assert run.statuses == dict.fromkeys(ALL, "not_attempted")


def test_one_while_the_end_is_recorded_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    run = Provision(tmp_path)
    run.go()
    run.until((tmp_path / "recording").exists)
    run.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert run.process.poll() is None
    (tmp_path / "hold").unlink()
    assert run.end() == 0
    assert run.statuses == dict.fromkeys(ALL, "changed")


def test_a_second_one_while_the_end_is_recorded_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    run = Provision(tmp_path)
    run.go()
    run.until((tmp_path / "recording").exists)
    for _ in range(2):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert run.end() == -signal.SIGINT


@pytest.mark.parametrize("interruptions", [1, 2])
def test_a_second_one_does_not_wait_for_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruptions: int
) -> None:
    """What the worker has done is not known here: its host is no pending one, and no untouched one. The slice behind it
    was not begun."""
    fleet = fake_fleet.fleet(tmp_path, monkeypatch, "gpu1", "gpu2")
    told, answer = threading.Event(), Future[str]()

    class Slow(workers_here.WorkersHere):
        def submit(self, function: object, run: str, order: str) -> Future[Any]:
            if len(self.orders) < 2:  # the plans of both
                return super().submit(function, run, order)
            threading.Thread(target=interrupt).start()
            return answer

        def call_all(self, function: object, *arguments: str) -> None:
            super().call_all(function, *arguments)
            told.set()

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert told.wait(60)
        if interruptions == 2:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            answer.set_result('{"failed": "it was interrupted"}')

    workers = Slow(tmp_path / "worker")
    monkeypatch.setattr(dask_workers, "connect", lambda *_: contextlib.nullcontext(workers))
    words = {"inventory": fleet.inventory, "playbook": fleet.playbook, "executor": workers_here.ADDRESS, "slice": "1"}
    code = run_command("provision", host="all", yes=True, json=str(tmp_path / "out.json"), **words)
    hosts = json.loads((tmp_path / "out.json").read_text())["hosts"]
    assert (code, hosts["gpu1"]["status"], hosts["gpu2"]["status"]) == (130, "failed", "not_attempted")
    found = "left before it was done; how far it came is not known here" if interruptions == 2 else "it was interrupted"
    assert found in hosts["gpu1"]["error"]["found"]
    assert [how for _, how in workers.told] == ["interrupt"]


def test_programs_of_this_machine_end_with_the_run(tmp_path: Path) -> None:
    """Such as pip, which fetches wheels, with what it has started itself."""
    script = "sh -c \"trap 'echo ended >$1/inner; exit' TERM; : >$1/begun; while :; do sleep 0.05; done\" & wait"
    ended: list[int] = []

    def work() -> None:
        ended.append(children.run(["sh", "-c", script, "sh", str(tmp_path)], 60).returncode)

    thread = threading.Thread(target=work)
    thread.start()
    _await(tmp_path / "begun")
    children.end_all()
    thread.join(20)
    _await(tmp_path / "inner")
    assert ended == [-signal.SIGTERM]


def _await(file: Path) -> None:
    ends = time.monotonic() + 20
    while not file.exists():
        assert time.monotonic() < ends
        time.sleep(0.01)
