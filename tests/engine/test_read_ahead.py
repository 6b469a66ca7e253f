"""The record of the commands that a run read a host with."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rigwright.core import secrets
from rigwright.core.command import command, script
from rigwright.engine import read_ahead

COMMANDS = (script('cat "$1"', "/etc/hostname", reads=True), command("tee", stdin=b"\xff", timeout_s=5))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of the records."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "rigwright" / read_ahead.FOLDER


def test_the_next_run_of_the_command_gets_them(folder: Path) -> None:
    assert read_ahead.recorded_commands("a/b", "provision") == ()
    read_ahead.record("a/b", "provision", COMMANDS)
    assert read_ahead.recorded_commands("a/b", "provision") == COMMANDS
    assert read_ahead.recorded_commands("a/b", "verify") == ()
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_same_commands_are_not_written_again(folder: Path) -> None:
    read_ahead.record("box", "plan", COMMANDS)
    (file,) = folder.iterdir()
    written = file.stat().st_mtime_ns
    read_ahead.record("box", "plan", COMMANDS)
    assert file.stat().st_mtime_ns == written


def test_a_command_with_a_secret_is_not_recorded() -> None:
    secrets.learn("hunter2-hunter2")
    try:
        read_ahead.record("box", "plan", (command("echo", "hunter2-hunter2"), COMMANDS[0]))
    finally:
        secrets.forget()
    assert read_ahead.recorded_commands("box", "plan") == COMMANDS[:1]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"schema": 1}', '{"schema": 1, "release": "RELEASE", "commands": [[["a"], "?", 5, true]]}',
     '{"schema": 1, "release": "RELEASE", "commands": [[[], "", 5, true]]}',
     '{"schema": 1, "release": "RELEASE", "commands": [[["a"], "", -1, true]]}',
     '{"schema": 1, "release": "RELEASE", "commands": [[[1], "", 5, true]]}',
     '{"schema": 1, "release": "0.0.0-other", "commands": []}'],
)  # fmt: skip
def test_a_damaged_record_is_none(folder: Path, text: str) -> None:
    read_ahead.record("box", "plan", COMMANDS)
    (file,) = folder.iterdir()
    file.write_text(text.replace("RELEASE", json.loads(file.read_text())["release"]))
    assert read_ahead.recorded_commands("box", "plan") == ()


def test_a_record_that_another_user_could_have_written_is_none(folder: Path, tmp_path: Path) -> None:
    read_ahead.record("box", "plan", COMMANDS)
    (file,) = folder.iterdir()
    file.chmod(0o620)
    assert read_ahead.recorded_commands("box", "plan") == ()
    file.chmod(0o600)
    moved = file.rename(tmp_path / "elsewhere")
    file.symlink_to(moved)
    assert read_ahead.recorded_commands("box", "plan") == ()
    os.replace(moved, file)
    assert read_ahead.recorded_commands("box", "plan") == COMMANDS
