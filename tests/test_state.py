"""What runs leave on this machine: one folder for all of it, under sudo the caller's; files whole, and only for their owner."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rigwright import editing, hostkeys, remembered, rollout, state
from rigwright.errors import UsageError
from rigwright.facts.machine import Past
from rigwright.history import History, file
from rigwright.report import ending
from rigwright.rollout import Rollout
from tests.test_hostkeys import KEYS

ROLLOUT = Rollout("r1", "hosts.yml", "", "gpu", "", 0, 1, ("a", "b"), (("a",), ("b",)))
PAST = Past(65536, 2, 64, ("A1 32768 MiB",), ("0000:06:00.0 1db1",))


@pytest.fixture
def anna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    """She called sudo; which files were given to her."""
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
    rollout.save(ROLLOUT)
    assert rollout.stopped() == ROLLOUT
    return state.place("rollouts", "r1.json")


def _remembered() -> Path:
    remembered.remember("a/b", "192.0.2.1", PAST)
    assert remembered.last("a/b", "192.0.2.1") == PAST
    return state.place("hosts", "a%2Fb.json")


def _history() -> Path:
    with History.open():
        return file()


@pytest.mark.parametrize("leave", [_rollout, _remembered, _history])
def test_under_sudo_all_of_it_is_the_callers(tmp_path: Path, anna: dict[Path, int], leave: Callable[[], Path]) -> None:
    path = leave()
    assert path.is_relative_to(tmp_path / ".local" / "state" / "rigwright")
    assert set(anna) == {path, *(one for one in path.parents if one.is_relative_to(tmp_path) and one != tmp_path)}
    assert set(anna.values()) == {1000}
    modes = {one: one.stat().st_mode & 0o777 for one in anna}
    assert modes.pop(path) == 0o600
    assert set(modes.values()) == {0o700}


@pytest.mark.parametrize("leave", [_rollout, _remembered])
def test_a_disk_that_is_full_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: Callable[[], Path]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = leave()
    was = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with contextlib.suppress(UsageError):
        leave()
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == was


def test_a_link_in_the_callers_folder_leads_root_nowhere(tmp_path: Path, anna: dict[Path, int]) -> None:
    other = tmp_path / "other"
    other.write_text("not hers")
    path = state.place("hosts", "a%2Fb.json")
    state.made(path.parent)
    path.symlink_to(other)
    assert _remembered() == path
    assert (other.read_text(), path.is_symlink(), path.stat().st_mode & 0o777) == ("not hers", False, 0o600)
    assert set(anna) == {path}


# Files that the user names


def test_a_report_keeps_the_mode_and_the_link_of_the_one_before(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "run.json"
    real.write_text("{}")
    real.chmod(0o640)
    link.symlink_to(real)
    ending.put("--json", "[]", str(link))
    assert (link.is_symlink(), real.read_text(), real.stat().st_mode & 0o777) == (True, "[]", 0o640)


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    ending.insist(ending.Files(json=str(pipe)))
    ending.put("--json", json.dumps([1]), str(pipe))
    reader.join(10)
    assert got == ["[1]"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_report_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        ending.put("--json", "[]", str(tmp_path / "there" / "run.json"))
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_added_to_what_is_there_whatever_that_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = hostkeys.OWN.expanduser()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"# J\xfcrgen's\n")
    path.chmod(0o600)
    for _ in range(2):
        assert hostkeys.trust("box", KEYS[0]) == path
    assert path.read_bytes().splitlines()[0] == b"# J\xfcrgen's"
    assert len(path.read_bytes().splitlines()) == 2
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        hostkeys.trust("box", KEYS[0])


def test_what_only_speeds_up_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", waited.append)
    editing.replace(tmp_path / "a", b"", lasting=False)
    assert waited == []
    editing.replace(tmp_path / "a", b"")
    assert len(waited) == 1
