"""`invoke rollback` on the command line; what it does on a host is in tests/end_to_end/test_remove.py."""

from __future__ import annotations

import pytest

from rigwright.cli import runner
from rigwright.cli.options import RollbackOptions
from rigwright.cli.rollback import rollback
from rigwright.core.errors import UsageError


def test_the_host_must_be_named() -> None:
    with pytest.raises(UsageError, match="it is not given") as caught:
        rollback(RollbackOptions())
    assert caught.value.fix.endswith(" rollback --host NAME")


def test_a_word_that_is_no_run_is_refused_before_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run", lambda *_: pytest.fail("a host is asked"))
    with pytest.raises(UsageError, match="'yesterday' is no id of a run") as caught:
        rollback(RollbackOptions(host="frame", to="yesterday"))
    assert "rollback --host frame --list" in caught.value.fix


def test_the_flag_that_the_error_about_gpus_in_use_names_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[runner.HostCommand] = []
    monkeypatch.setattr(runner, "run", lambda _options, prepare: commands.append(prepare("id")) or 0)
    assert rollback(RollbackOptions(host="one", disrupt=True)) == 0
    assert commands[0].disrupt
    assert commands[0].playbook is not None
    assert commands[0].playbook.name == "rollback.yml"


def test_the_list_of_runs_needs_no_playbook(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[runner.HostCommand] = []
    monkeypatch.setattr(runner, "run", lambda _options, prepare: commands.append(prepare("id")) or 0)
    assert rollback(RollbackOptions(host="one", list=True)) == 0
    assert commands[0].playbook is None
