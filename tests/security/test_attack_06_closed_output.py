"""Whatever becomes of the output: what was done to the hosts is recorded in the history and in --json, with its exit
code."""

from __future__ import annotations

import json
import os
import pty
from pathlib import Path
from typing import IO, Any, cast

import pytest

from rigwright.cli import watch
from rigwright.core.process import streams
from rigwright.engine import events
from rigwright.report.terminal import Text
from tests.cli.run_command import run_command
from tests.fleet import fake_fleet
from tests.security.fleet_program import Provision

pytestmark = pytest.mark.timeout(180)
CHANGED = dict.fromkeys(("gpu1", "gpu2", "gpu3"), "changed")


@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ('"$@" >&-', 0),
        ('"$@" 2>&-', 0),
        ('"$@" <&- >&- 2>&-', 0),
        ('"$@" >/dev/full', 1),
        ('"$@" >/dev/full 2>/dev/full', 1),
    ],
)
def test_standard_streams_that_cannot_be_written(tmp_path: Path, shell: str, code: int) -> None:
    run = Provision(tmp_path, shell)
    run.go()
    _, errors = run.process.communicate(timeout=90)
    assert run.process.returncode == code, errors
    assert run.statuses == CHANGED
    assert run.document["exit_code"] == 0
    assert "Traceback" not in errors
    assert ("error stdout: cannot be written: No space left on device" in errors) == (shell == '"$@" >/dev/full')


def test_a_reader_that_ends(tmp_path: Path) -> None:
    """As `| head -1` does: it reads the first line and ends, while the hosts are being changed."""
    run = Provision(tmp_path)
    run.until_begun()
    assert run.process.stdout
    assert run.process.stdout.readline()
    run.process.stdout.close()
    run.go()
    assert run.end() == 0
    assert run.statuses == CHANGED


def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    """Writing to it then fails with EIO. Without its SIGHUP, as for a run that was disowned, the run goes on."""
    ours, theirs = pty.openpty()
    run = Provision(tmp_path, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    run.until_begun()
    os.close(ours)
    run.go()
    assert run.end() == 0
    assert run.statuses == CHANGED


ENDINGS = (
    SystemExit(1),
    KeyboardInterrupt(),
    MemoryError(),
    RecursionError("too deep"),
    OSError(24, "Too many open files"),
)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: type(ending).__name__)
def test_whatever_ends_the_work_on_a_host_is_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: BaseException
) -> None:
    """After the first change, in the middle of the second: the first is told as done, and the host is no pending
    one."""
    fleet = fake_fleet.fleet(tmp_path, monkeypatch, "gpu1", "gpu2")
    tasks = "    - name: Other\n      file.directory: {path: /srv/other}\n"
    Path(fleet.playbook).write_text(fake_fleet.PLAY + tasks)

    def before(name: str) -> None:
        if name in fleet.made and name == "gpu1":
            raise ending

    fleet.before = before
    code, document = provision(fleet)
    host = document["hosts"]["gpu1"]
    assert code == 1
    assert host["status"] == "failed"
    assert host["error"]["where"] == "gpu1"
    assert {step["name"]: step["status"] for step in host["steps"]} == {"Room": "changed", "Other": "failed"}
    assert [change["done"] for change in host["changes"]] == [True, False]


def test_a_display_that_fails_ends_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rich raises SystemExit for a broken pipe."""

    def event(_text: Text, event: events.Event) -> None:
        if isinstance(event, events.StepDone):
            raise SystemExit(1)

    monkeypatch.setattr(Text, "event", event)
    fleet = fake_fleet.fleet(tmp_path, monkeypatch, "gpu1", "gpu2")
    code, document = provision(fleet)
    assert (code, {host["status"] for host in document["hosts"].values()}) == (0, {"changed"})
    assert sorted(fleet.made) == ["gpu1", "gpu2"]


@pytest.mark.parametrize(
    "ending", [MemoryError(), SystemExit(1), ValueError("odd")], ids=lambda ending: type(ending).__name__
)
def test_an_error_of_the_main_thread_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: BaseException
) -> None:
    """In the middle of showing the results, when the hosts are changed."""

    def closing(_reports: object, _name: str) -> str:
        raise ending

    monkeypatch.setattr("rigwright.cli.provision.closing", closing)
    code, document = provision(fake_fleet.fleet(tmp_path, monkeypatch, "gpu1", "gpu2"))
    assert (code, document["exit_code"]) == (1, 1)
    memory = isinstance(ending, MemoryError)
    bug = f"a bug in rigwright ({type(ending).__name__}: {ending})"
    assert document["error"]["found"] == ("this machine has no memory left" if memory else bug)
    assert {host["status"] for host in document["hosts"].values()} == {"changed"}


def test_a_watch_ends_when_nobody_reads_it_any_more() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as pipe:
        stream = cast(IO[str], streams.SafeStream(pipe))
        text = Text(stream, "", False)
        text.line("09:00:00 gpu1 fail driver")
        watch.watch([], text)


PHASES = {
    "reading the inventory": ("rigwright.cli.runner.read_inventory", set()),
    "connecting": ("rigwright.fleet.host_runs.load_recorded", {"not_attempted"}),
    "showing the plan": ("rigwright.report.terminal.Text.plans", {"not_attempted"}),
    "asking": ("rigwright.cli.runner.consent", {"not_attempted"}),
    "showing the results": ("rigwright.cli.provision.closing", {"changed"}),
    "closing the connections": ("rigwright.fleet.pool.close", {"changed"}),
}


@pytest.mark.parametrize(("function", "statuses"), PHASES.values(), ids=PHASES)
def test_an_interruption_is_recorded_in_every_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, statuses: set[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(function, interrupted)
    fleet = fake_fleet.fleet(tmp_path, monkeypatch, "gpu1", "gpu2")
    code, document = provision(fleet)
    assert (code, document["exit_code"]) == (130, 130)
    assert {host["status"] for host in document["hosts"].values()} == statuses
    assert len(fleet.made) == (2 if "changed" in statuses else 0)


def provision(fleet: fake_fleet.Fleet) -> tuple[int, Any]:
    """Provisions all hosts in this process; returns the exit code and the JSON document."""
    file = fleet.folder / "out.json"
    words = {"host": "all", "inventory": fleet.inventory, "playbook": fleet.playbook, "json": str(file), "yes": True}
    code = run_command("provision", **words)
    return code, json.loads(file.read_text())
