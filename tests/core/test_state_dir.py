"""Files that runs write here: one folder (under sudo, the caller's), atomic writes, readable only by the owner."""

from __future__ import annotations

import os
import pwd
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rigwright.core.errors import RigwrightError, UsageError
from rigwright.core.files import atomic, state_dir
from rigwright.fleet import journal
from rigwright.fleet.journal import Rollout
from rigwright.history import History, file
from rigwright.report import output_files
from rigwright.ssh import known_hosts
from tests.ssh.test_known_hosts import KEYS

ROLLOUT = Rollout("r1", "hosts.yml", "", "gpu", "", 0, 1, ("a", "b"), (("a",), ("b",)), runs=("r1",))


@pytest.fixture
def anna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    """Simulates sudo called by the user anna; returns the files whose owner was set, with the user id."""
    given: dict[Path, int] = {}
    for name in ("XDG_STATE_HOME", "RIGWRIGHT_HISTORY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("SUDO_USER", "anna")
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: SimpleNamespace(pw_dir=str(tmp_path), pw_uid=1000, pw_gid=1000))
    monkeypatch.setattr(os, "chown", lambda path, uid, _gid, **_: given.update({Path(path): uid}))
    return given


def _rollout() -> Path:
    journal.begin(ROLLOUT)
    assert journal.last_stopped() == ROLLOUT
    journal.leave(ROLLOUT.run)
    return journal.file()


def _history() -> Path:
    with History.open():
        return file()


@pytest.mark.parametrize("leave", [_rollout, _history])
def test_under_sudo_all_of_it_is_the_callers(tmp_path: Path, anna: dict[Path, int], leave: Callable[[], Path]) -> None:
    path = leave()
    assert path.is_relative_to(tmp_path / ".local" / "state" / "rigwright")
    assert set(anna) == {path, *(one for one in path.parents if one.is_relative_to(tmp_path) and one != tmp_path)}
    assert set(anna.values()) == {1000}
    modes = {one: one.stat().st_mode & 0o777 for one in anna}
    assert modes.pop(path) == 0o600
    assert set(modes.values()) == {0o700}


@pytest.mark.parametrize("leave", [_rollout, _history])
@pytest.mark.parametrize("target", ["nothing", "an empty file", "a file"])
def test_a_link_in_the_callers_folder_leads_root_nowhere(
    tmp_path: Path, anna: dict[Path, int], leave: Callable[[], Path], target: str
) -> None:
    """Hostile: root must not create or change a file of another user, such as one in /etc/cron.d."""
    other = tmp_path / "other"
    if target != "nothing":
        other.write_text("not hers" if target == "a file" else "")
    before = other.read_text() if other.exists() else None
    path = state_dir.place("rollouts.sqlite" if leave is _rollout else "history.sqlite")
    state_dir.make_folders(path.parent)
    path.symlink_to(other)
    with pytest.raises(RigwrightError) as caught:
        leave()
    assert caught.value.found.startswith("is a link, and root writes through no link of another user")
    assert (other.read_text() if other.exists() else None) == before
    assert anna == {}


# Files that options name

TEXT = '{\n  "a": 1\n}\n'


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    output_files.require_writable(output_files.Files(json=str(pipe)))
    output_files.write_json({"a": 1}, str(pipe))
    reader.join(10)
    assert got == [TEXT]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_report_makes_no_folder_and_keeps_mode_and_link(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        output_files.write_json({"a": 1}, str(tmp_path / "there" / "run.json"))
    assert list(tmp_path.iterdir()) == []
    real, link = tmp_path / "real.json", tmp_path / "run.json"
    real.write_text("{}")
    real.chmod(0o640)
    link.symlink_to(real)
    output_files.write_json({"a": 1}, str(link))
    assert (link.is_symlink(), real.read_text(), real.stat().st_mode & 0o777) == (True, TEXT, 0o640)


def test_a_key_is_added_to_what_is_there_whatever_that_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = known_hosts.OWN.expanduser()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"# J\xfcrgen's\n")
    path.chmod(0o600)
    for _ in range(2):
        assert known_hosts.trust("box", KEYS[0]) == path
    assert path.read_bytes().splitlines()[0] == b"# J\xfcrgen's"
    assert len(path.read_bytes().splitlines()) == 2
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        known_hosts.trust("box", KEYS[0])


def test_what_only_speeds_up_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", waited.append)
    atomic.replace(tmp_path / "a", b"", lasting=False)
    assert waited == []
    atomic.replace(tmp_path / "a", b"")
    assert len(waited) == 1
