"""A controller that cannot keep what it should: the run is done, its exit code is true, and one message says what is
missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet.fake_fleet import PLAY
from tests.paths import ROOT
from tests.security.fleet_program import Provision

pytestmark = pytest.mark.timeout(180)
CHANGED = dict.fromkeys(("gpu1", "gpu2", "gpu3"), "changed")


def provisioned(folder: Path, shell: str = '"$@"', *words: str, **environment: str) -> tuple[Provision, str]:
    """Provisions the hosts; returns the run and what it printed, which has no traceback."""
    run = Provision(folder, shell, *words, env=environment)
    run.go()
    out, errors = run.process.communicate(timeout=90)
    assert "Traceback" not in out + errors
    assert out.count(" proved by ") + out.count("no check was made") == 3, out + errors
    return run, out + errors


def statuses(run: Provision) -> dict[str, str]:
    """Returns the status of each host in the JSON document."""
    return {name: host["status"] for name, host in run.document["hosts"].items()}


FULL = {
    "history": ({"RIGWRIGHT_HISTORY": "/dev/full"}, (), 0, "the history has not recorded this run"),
    "home": ({"RIGWRIGHT_HISTORY": "", "XDG_STATE_HOME": "/sys/state"}, (), 0, "the history has not recorded this run"),
    "page": ({}, ("--html", "/dev/full"), 1, "--html: /dev/full cannot be written (No space left on device)"),
}


@pytest.mark.parametrize(("environment", "words", "code", "told"), FULL.values(), ids=FULL)
def test_a_place_that_cannot_be_written(
    tmp_path: Path, environment: dict[str, str], words: tuple[str, ...], code: int, told: str
) -> None:
    run, text = provisioned(tmp_path, '"$@"', *words, **environment)
    assert run.process.returncode == code, text
    assert text.count(told) == 1
    assert statuses(run) == CHANGED
    assert run.document["exit_code"] == 0


def test_a_document_that_cannot_be_written(tmp_path: Path) -> None:
    run, text = provisioned(tmp_path, '"${@/#*out.json//dev/full}"')
    assert run.process.returncode == 1
    assert "--json: /dev/full cannot be written (No space left on device)" in text
    assert "the history has not recorded" not in text


def test_no_room_for_any_file(tmp_path: Path) -> None:
    """As on a full disk: every write to a file fails. An old document is not left half replaced."""
    (tmp_path / "out.json").write_text("{}")
    (tmp_path / "full").touch()
    run, text = provisioned(tmp_path)
    assert run.process.returncode == 1
    assert "the history has not recorded this run" in text
    assert f"--json: {tmp_path}/out.json cannot be written (File too large)" in text
    assert (tmp_path / "out.json").read_text() == "{}"
    assert not list(tmp_path.glob(".out.json*"))


def test_a_user_without_a_name_and_a_home(tmp_path: Path) -> None:
    (tmp_path / "nobody").touch()
    run, text = provisioned(tmp_path, RIGWRIGHT_HISTORY="", XDG_STATE_HOME="", USER="", LOGNAME="")
    assert run.process.returncode == 0
    assert text.count("has no home directory") == 1
    assert "set HOME, or XDG_STATE_HOME" in text
    assert statuses(run) == CHANGED


def test_a_login_of_a_user_without_a_name_and_a_home(tmp_path: Path) -> None:
    """The libraries for ssh ask for both, before they connect."""
    (tmp_path / "hosts.yml").write_text(
        "gpu:\n  hosts:\n    one: {ansible_host: 127.0.0.1, ansible_port: 9, ansible_user: ada}\n"
    )
    (tmp_path / "play.yml").write_text(PLAY)
    program = (
        "import os, pwd, sys\n"
        "def unknown(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = unknown\n"
        "for name in ('HOME', 'LOGNAME', 'USER', 'LNAME', 'USERNAME', 'SUDO_USER'): os.environ.pop(name, None)\n"
        "sys.argv[0] = 'rigwright'\n"
        "from rigwright.cli import program\n"
        "program.main()\n"
    )
    words = [
        "plan",
        "--host",
        "one",
        "--inventory",
        str(tmp_path / "hosts.yml"),
        "--playbook",
        str(tmp_path / "play.yml"),
    ]
    argv = [sys.executable, "-c", program, *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the connection was refused" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
