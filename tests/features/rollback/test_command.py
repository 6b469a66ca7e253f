"""`invoke rollback` on the command line; what it does on a host is in tests/end_to_end/test_remove.py."""

from __future__ import annotations

import io
from typing import Any

import pytest

from rigwright.cli import runner
from rigwright.core.change import Change
from rigwright.core.command import Command, Result
from rigwright.core.errors import ConsentError, HostError, UsageError
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import Step
from rigwright.engine.report import PlanResult
from rigwright.facts import run_record
from rigwright.facts.run_record import State, Written, WrittenFile
from rigwright.features.rollback.command import rollback
from rigwright.features.rollback.options import RollbackOptions
from rigwright.fleet import actions
from rigwright.inventory.model import Host
from rigwright.report.terminal import Text
from tests.facts.test_past_runs import runs
from tests.host_runs import host_run
from tests.ssh.fake_transport import FakeTransport


def test_the_host_must_be_named() -> None:
    with pytest.raises(UsageError, match="it is not given") as caught:
        rollback(RollbackOptions())
    assert caught.value.fix.endswith(" rollback --host NAME")


def test_a_word_that_is_no_run_is_refused_before_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run", lambda *_: pytest.fail("a host is asked"))
    with pytest.raises(UsageError, match="'yesterday' is no id of a run") as caught:
        rollback(RollbackOptions(host="frame", to="yesterday"))
    assert "rollback --host frame --list" in caught.value.fix


def test_the_options_become_a_playbook_or_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[runner.HostCommand] = []
    monkeypatch.setattr(runner, "run", lambda _options, prepare: commands.append(prepare("id")) or 0)
    assert rollback(RollbackOptions(host="one", disrupt=True)) == 0
    assert commands[0].disrupt
    assert commands[0].playbook is not None
    assert commands[0].playbook.name == "rollback.yml"
    commands: list[runner.HostCommand] = []
    monkeypatch.setattr(runner, "run", lambda _options, prepare: commands.append(prepare("id")) or 0)
    assert rollback(RollbackOptions(host="one", list=True)) == 0
    assert commands[0].playbook is None


HOST = Host("box", (), {})
STEP = Step("Packages", "rollback.package_versions", lambda _facts: iter(()), {}, "rollback.yml:1")
PATCH = Change("remove", "patch", "2.7.6", "")
UNDO = "to bring back what that rollback took away: invoke rollback --host box --to c"


class Box:
    """A host that remembers runs (as tests/facts/test_past_runs.py writes them), and on which `changes` are due."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, remembered: str, *changes: Change, ours: bool = True) -> None:
        self.transport = FakeTransport(lambda cmd: Result(0, b"1" if "token" in str(cmd) else b""))
        was, now = State("absent"), State("file", "0644", "0:0", "1" * 64)
        known: dict[Any, Any] = {
            run_record.runs: runs(*remembered.split()),
            run_record.written(1): Written((WrittenFile("/etc/x", "a", was, now, "", ours),)),
        }
        self.run = host_run(self.transport, "20261126-163210-d613", HOST)
        self.run.store.known.update(known)
        monkeypatch.setattr("rigwright.features.rollback.command.program_name", lambda: "invoke")
        monkeypatch.setattr("rigwright.engine.rollback.require_run", lambda _to, _host: None)
        steps = (PlannedStep(STEP, "pending" if changes else "ok", changes),)
        monkeypatch.setattr(actions, "plan_or_fail", lambda _job: iter((PlanResult(steps),)))
        monkeypatch.setattr(actions, "apply_host", lambda _job: iter(()))
        self.monkeypatch = monkeypatch

    def says(self, **given: Any) -> str:
        """Runs the command; returns what it says in one line."""
        commands: list[runner.HostCommand] = []
        self.monkeypatch.setattr(runner, "run", lambda _options, prepare: commands.append(prepare("id")) or 0)
        rollback(RollbackOptions(host="box", **given))
        stream = io.StringIO()
        commands[0].act([self.run], Text(stream, "inventory", many=False))
        return " ".join(stream.getvalue().split())

    @property
    def ran(self) -> list[Command]:
        return self.transport.ran


@pytest.mark.parametrize("to", ["", "b"])
def test_after_a_rollback_that_ended_the_same_command_says_so(to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(monkeypatch, "a b c>b! d>b")
    said = box.says(to=to, yes=True)
    assert f"it is as before run b already (rollback of 2026-11-22 03:00:00 UTC); {UNDO}" in said
    assert said.endswith("to go further back: invoke rollback --host box --list")
    assert (box.run.report.error, box.ran) == (None, [])


def test_what_was_changed_since_a_rollback_is_named_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(monkeypatch, "a b c>b", PATCH)
    box.says(yes=True)
    error = box.run.report.error
    assert isinstance(error, ConsentError)
    assert error.found.endswith("; changed since, or left out by --tags: patch: 2.7.6, not nothing")
    assert error.fix.startswith("invoke rollback --host box --to b changes that too; ")
    assert UNDO in error.fix


@pytest.mark.parametrize(
    ("remembered", "given"), [("a b c>b", {"to": "b"}), ("a b c>b", {"to": "c"}), ("a b c>b!", {}), ("a b", {})]
)
def test_a_change_that_is_asked_for_is_planned(
    remembered: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(monkeypatch, remembered, PATCH)
    box.says(yes=True, **given)
    assert (box.run.report.error, box.run.report.status) == (None, "pending")


def test_a_rollback_that_was_cut_after_its_last_change_has_ended_then(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(monkeypatch, "a b c>b!")
    assert "it is as before run b already" in box.says(yes=True)
    assert [cmd.argv[-1] for cmd in box.ran] == ["c"]
    some = Box(monkeypatch, "a b c>b!")
    some.says(yes=True, tags="files")
    assert some.ran == [], "other steps may be left"


def test_a_host_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(monkeypatch, "")
    assert "nothing to take back" in box.says(yes=True, playbook="")
    assert box.run.report.error is None
    assert "0 runs to go back before" in Box(monkeypatch, "").says(list=True)


def test_the_list_says_what_is_a_rollback_and_where_the_host_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Box(monkeypatch, "a b c>b! d>b").says(list=True)
    day = "2026-11-22"
    assert f"d {day} 04:00:00 UTC, a rollback to before b, which went on with c" in said
    assert f"c {day} 03:00:00 UTC, a rollback to before b, did not end" in said
    assert f"b {day} 02:00:00 UTC, taken back a {day} 01:00:00 UTC now: as before run b, since the rollback c" in said


def test_adopting_is_asked_and_needs_a_file_of_those_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConsentError):
        Box(monkeypatch, "a~").says(adopt=True)
    box = Box(monkeypatch, "a~ b")
    said = box.says(adopt=True, yes=True)
    assert "1 run under another machine-id: a" in said
    assert "of the files that they wrote 1 stand as they left them, 0 do not" in said
    assert [cmd.argv[4:] for cmd in box.ran if "record/adopted" in str(cmd.argv)] == [("a",)]
    box = Box(monkeypatch, "a~", ours=False)
    box.says(adopt=True, yes=True)
    assert isinstance(box.run.report.error, HostError)
    assert "1 file of a and later runs: each was changed or removed since" in box.run.report.error.found
    assert box.ran == []
    assert "all its records are of this installation" in Box(monkeypatch, "a").says(adopt=True, yes=True)
