"""The scripts that write a file, record it, and take it away again, in a folder in place of the root of a host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rigwright.core.change import Change
from rigwright.core.command import Command, Result
from rigwright.facts import FactStore
from rigwright.facts.footprint import Footprint, footprint
from rigwright.operations import file
from rigwright.operations.footprint import files_removed


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder with a file that was there before rigwright."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/motd").write_text("welcome\n")
    (tmp_path / "etc/motd").chmod(0o640)
    return tmp_path


def _run(host: Path, command: Command, run: str = "") -> Result:
    """Runs a command with the folder in place of /var/lib/rigwright, /etc and /usr."""
    argv = list(command.argv)
    for folder in ("/var/lib/rigwright", "/etc/", "/usr/"):
        argv = [word.replace(folder, f"{host}{folder}") for word in argv]
    done = subprocess.run(
        argv, input=command.stdin, capture_output=True, env={**os.environ, "RIGWRIGHT_RUN": run}, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


def _write(host: Path, path: str, text: str, run: str = "one") -> None:
    owner = subprocess.run(["stat", "-c", "%U %G", host], capture_output=True, text=True, check=True).stdout.split()
    assert _run(host, file.write(path, text.encode(), "0644", *owner), run).code == 0


def _footprint(host: Path) -> Footprint:
    text = _run(host, footprint.command).text.replace(str(host), "")
    found: Footprint = footprint.parse(Result(0, text.encode()))
    return found


def _removed(host: Path) -> None:
    for change in files_removed(FactStore({footprint: _footprint(host)})):
        assert isinstance(change, Change)
        for command in change.commands:
            assert _run(host, command, "two").code == 0


def test_a_file_of_before_is_kept_once_and_comes_back(host: Path) -> None:
    _write(host, "/etc/motd", "first\n")
    _write(host, "/etc/motd", "second\n")
    assert [(one.path, one.replaced) for one in _footprint(host).files] == [("/etc/motd", True)]
    _removed(host)
    assert (host / "etc/motd").read_text() == "welcome\n"
    assert (host / "etc/motd").stat().st_mode & 0o777 == 0o640
    assert _footprint(host).files == ()


def test_a_new_file_goes_and_its_last_content_is_kept_for_root_only(host: Path) -> None:
    _write(host, "/etc/rigwright/limits.json", "{}\n")
    _removed(host)
    assert not (host / "etc/rigwright").exists()
    runs = host / "var/lib/rigwright/runs"
    (kept,) = runs.rglob("limits.json")
    assert kept.read_text() == "{}\n"
    assert runs.stat().st_mode & 0o077 == 0 or kept.parent.stat().st_mode & 0o077 == 0
    _removed(host)  # nothing is left to do


def test_a_file_that_somebody_deleted_is_forgotten(host: Path) -> None:
    _write(host, "/etc/new.conf", "x\n")
    (host / "etc/new.conf").unlink()
    assert [(one.path, one.there) for one in _footprint(host).files] == [("/etc/new.conf", False)]
    _removed(host)
    assert (_footprint(host).files, (host / "etc/new.conf").exists()) == ((), False)


def test_rigwright_s_files_are_found_without_their_list(host: Path) -> None:
    _write(host, "/etc/rigwright/limits.json", "{}\n")
    (host / "var/lib/rigwright/files").unlink()
    assert [one.path for one in _footprint(host).files] == ["/etc/rigwright/limits.json"]
