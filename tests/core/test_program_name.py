"""The program as it was typed: a printed command can be pasted where it was printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rigwright.cli.program import COMMANDS
from rigwright.core import features
from rigwright.core.process import program_name as names
from rigwright.core.process.program_name import as_typed, package_name, program_name

TEXT = "invoke verify --host a; sudo invoke lab.up; to invoke it"


@pytest.mark.parametrize(
    ("script", "interpreter", "typed"),
    [
        (".venv/bin/invoke", "python3", ".venv/bin/invoke"),
        (".venv/bin/inv", "python3", ".venv/bin/inv"),
        ("../my checkout/.venv/bin/invoke", "python3", "'../my checkout/.venv/bin/invoke'"),
        ("/usr/lib/python3/invoke/__main__.py", ".venv/bin/python", ".venv/bin/python -m invoke"),
        ("/srv/.venv/bin/pytest", "python3", "invoke"),
    ],
)
def test_invoke_as_it_was_typed(script: str, interpreter: str, typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [script, "verify"])
    monkeypatch.setattr(names, "COMMANDS", {*names.COMMANDS, "lab.up"})
    monkeypatch.setattr(sys, "orig_argv", [interpreter, script, "verify"])
    assert program_name() == typed
    assert as_typed(TEXT) == f"{typed} verify --host a; sudo {typed} lab.up; to invoke it"
    assert as_typed(as_typed(TEXT)) == as_typed(TEXT)


@pytest.mark.parametrize("name", ["invoke", "rigwright"])
def test_a_program_of_path_is_its_name_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program), "verify"])
    assert program_name() == str(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (program_name(), package_name()) == (name, name)


def test_a_command_that_the_program_does_not_have_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "COMMANDS", names.COMMANDS - {"lab.up"})
    monkeypatch.setattr(sys, "argv", [".venv/bin/rigwright", "verify"])
    assert as_typed(TEXT) == ".venv/bin/rigwright verify --host a; sudo invoke lab.up; to invoke it"
    assert (
        as_typed("invoke --list, invoke TASK --help") == ".venv/bin/rigwright --list, .venv/bin/rigwright TASK --help"
    )
    for unchanged in ("/srv/invoke plan", "re-invoke verify", "invoke plan-b"):
        assert as_typed(unchanged) == unchanged


def test_every_command_is_shown_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/rigwright", "verify"])
    commands = [*(each.command for each in COMMANDS), *features.commands()]
    shown = [as_typed(f"invoke {command} --host a") for command in commands]
    assert shown == [f".venv/bin/rigwright {command} --host a" for command in commands]
