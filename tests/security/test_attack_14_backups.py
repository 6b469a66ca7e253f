"""Attack 14: a file that a run replaces was readable for all below /var/lib/rigwright, wherever it came from."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

import pytest

from rigwright.core.command import script
from rigwright.engine import jobs, lease
from rigwright.operations import file
from tests.engine.shell_host import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Returns a host whose folder `runs` everybody can read, as an earlier version made it."""
    (tmp_path / "host").mkdir()
    made = Host(tmp_path / "host")
    (made.folder / "var" / "runs").mkdir()
    (made.folder / "var" / "runs").chmod(0o755)
    return made


def mode(path: Path) -> int:
    """Returns the permissions of a file or folder."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [0o644, 0o640, 0o600])
def test_a_replaced_file_keeps_its_mode_below_a_folder_of_root(
    before: int, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIGWRIGHT_RUN", "run-1")
    replaced = tmp_path / "private" / "file"
    replaced.parent.mkdir(mode=0o700)
    replaced.write_text("before\n")
    replaced.chmod(before)
    owner, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    (done,) = host.run([file.write(str(replaced), b"after\n", "0600", owner, group)])
    assert done.code == 0, done.error_text
    kept = host.folder / "var" / "runs" / "run-1" / f"before{replaced}"
    assert (kept.read_text(), mode(kept)) == ("before\n", before)
    assert (replaced.read_text(), mode(replaced)) == ("after\n", 0o600)
    original = host.folder / "var" / "originals"
    assert ((original / f".{replaced}").read_text(), mode(original / f".{replaced}")) == ("before\n", before)
    assert (mode(host.folder / "var" / "runs"), mode(original)) == (0o700, 0o700)


def test_an_original_that_a_cut_left_half_copied_is_copied_again(host: Host, tmp_path: Path) -> None:
    replaced = tmp_path / "file"
    replaced.write_text("before\n")
    half = host.folder / "var" / "originals" / f".{replaced}.new"
    half.parent.mkdir(parents=True)
    half.write_text("bef")
    owner, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    (done,) = host.run([file.write(str(replaced), b"after\n", "0600", owner, group)])
    assert done.code == 0, done.error_text
    assert {path.name: path.read_text() for path in half.parent.iterdir()} == {"file": "before\n"}


def test_the_script_and_the_output_of_a_job_are_in_a_folder_of_root(host: Host) -> None:
    owner = lease.take(host, "host", "run-1").owner
    done = jobs.run(host, owner, "a step", 0, script("echo done"), lambda _line: None)
    assert done.code == 0
    assert mode(host.folder / "var" / "runs") == 0o700
