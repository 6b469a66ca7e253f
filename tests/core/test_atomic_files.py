"""Files of the user are replaced atomically and keep their mode, owner and other attributes."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from rigwright.core.errors import InputError, UsageError
from rigwright.core.files import atomic
from rigwright.core.yaml_source import loads


def test_mode_and_link_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yml", tmp_path / "inventory" / "hosts.yml"
    real.write_text("secret: 1\n")
    real.chmod(0o600)
    link.parent.mkdir()
    link.symlink_to(real)
    atomic.change({link: "secret: 2\n"}, lambda: None)
    assert link.is_symlink()
    assert (real.read_text(), real.stat().st_mode & 0o777) == ("secret: 2\n", 0o600)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["hosts.yml", "inventory", "real.yml"]


@pytest.mark.parametrize("wrong", [InputError("x", "no"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_all_is_as_it_was_when_something_objects(tmp_path: Path, wrong: BaseException) -> None:
    old, new = tmp_path / "hosts.yml", tmp_path / "host_vars" / "a.yml"
    old.write_bytes(b"a: 1\r\n")

    def proof() -> None:
        assert new.read_text() == "b: 1\n"
        raise wrong

    with pytest.raises((InputError, KeyboardInterrupt, UsageError)):
        atomic.change({new: "b: 1\n", old: "a: 2\n"}, proof)
    assert old.read_bytes() == b"a: 1\r\n"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["hosts.yml"]


def test_a_file_in_the_way_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "host_vars").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        atomic.change({tmp_path / "host_vars" / "a.yml": "b: 1\n"}, lambda: None)


def _append(path: Path) -> None:
    for _ in range(20):
        with atomic.alone(path.parent):
            atomic.change({path: atomic.text_of(path) + "x\n"}, lambda: None)


def test_two_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    both = [multiprocessing.get_context("spawn").Process(target=_append, args=(path,)) for _ in range(4)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    assert path.read_text() == "x\n" * 80


def test_a_lock_that_another_process_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "LOCK_S", 0.1)
    with (
        atomic.alone(tmp_path),
        pytest.raises(UsageError, match=r"has held its lock for 0\.1 s"),
        atomic.alone(tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    "text", ["a: " + "[" * 50000, "a: " + "{a: " * 2000, "- " * 5000 + "x", "a: " + "[" * 1000 + "]" * 1000]
)
def test_nesting_that_would_overflow_a_parser(text: str) -> None:
    with pytest.raises(InputError, match=r"x.yml:1: lists and mappings nested too deep"):
        loads(text, "x.yml")


@pytest.mark.parametrize(
    ("number", "expected", "fix"),
    [
        (errno.ENOSPC, "free space on the disk of this machine", "df -h {}"),
        (errno.EROFS, "a file system that can be written", "another directory; findmnt -T {} shows the file system"),
    ],
)
def test_a_disk_that_takes_no_file_is_named_with_what_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: str, fix: str
) -> None:
    def refuses(_handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuses)
    path = tmp_path / "hosts.yml"
    with pytest.raises(UsageError) as caught:
        atomic.change({path: "a: 1\n"}, lambda: None)
    error = caught.value
    assert (error.where, error.found) == (str(path), f"cannot be written: {os.strerror(number)}")
    assert (error.expected, error.fix) == (expected, fix.format(tmp_path))
