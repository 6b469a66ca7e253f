"""Scratch directories of a host are gone when the last run that uses them has ended; those of a run at work stay."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rigwright.core.command import Command, Result, script
from rigwright.core.errors import Unreachable
from rigwright.engine import run_owner
from rigwright.engine.host_run import HostRun
from rigwright.facts import Fact, scratch
from rigwright.inventory.model import Host
from rigwright.ssh.transport import Transport
from tests.host_runs import host_run
from tests.machine_speed import within

USES = Fact("test.uses", script(scratch.USE + 'scratch apt-1 && echo lists >"$d/lists"'), lambda _: True, scratch=True)
OTHER = "20261122-090000-ffff ada@desk-1.1 4711 99"
"""The owner of a run of another machine."""


class Here(Transport):
    """This machine's shell, with the scratch directories in a temporary folder."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        super().__init__(Host("host", (), {}), environment)
        self.folder, self.down = folder, False

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:  # noqa: ARG002
        """Returns what the shell answers."""
        if self.down:
            raise Unreachable("host", "gone")
        self.round_trips += 1
        results = []
        for cmd in commands:
            argv = [word.replace(scratch.FOLDER, f"{self.folder}/cache") for word in cmd.argv]
            env = {**os.environ, **self.environment}
            done = subprocess.run(argv, capture_output=True, timeout=60, check=False, env=env)
            results.append(Result(done.returncode, done.stdout, done.stderr))
        return results


def run_of(folder: Path, run_id: str, owner: str = "") -> HostRun:
    """Returns a run on the host in a folder; its owner is this process unless one is given."""
    environment = run_owner.environment(run_id) | ({"RIGWRIGHT_OWNER": owner} if owner else {})
    return host_run(Here(folder, environment), run_id)


def there(folder: Path) -> list[str]:
    """Returns what is left in the scratch directories."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_nothing_is_left_at_the_end(tmp_path: Path) -> None:
    run = run_of(tmp_path, "a")
    run.read([USES])
    assert "cache/apt-1/lists" in there(tmp_path)
    run.tidy()
    assert there(tmp_path) == []


def test_a_run_without_scratch_directories_does_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, "a")
    run.read([])
    before = run.transport.round_trips
    run.tidy()
    assert run.transport.round_trips == before


@pytest.mark.parametrize("owner", ["", OTHER])
def test_those_of_a_run_at_work_stay(tmp_path: Path, owner: str) -> None:
    """Of this process, and of another machine, about whose processes nothing is known."""
    first, second = run_of(tmp_path, "a", owner), run_of(tmp_path, "b")
    first.read([USES])
    second.read([USES])
    second.tidy()
    assert "cache/apt-1/lists" in there(tmp_path)
    first.tidy()
    assert there(tmp_path) == []


def test_those_of_a_run_that_ended_early_are_removed_by_any_later_run(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    mine = run_owner.owner("a").split()
    run_of(tmp_path, "a", " ".join([*mine[:2], str(ended.pid), "1"])).read([USES])
    later = run_of(tmp_path, "b")
    later.read([])
    later.tidy()
    assert there(tmp_path) == []


def test_the_mark_of_another_machine_counts_for_a_day(tmp_path: Path) -> None:
    run_of(tmp_path, "a", OTHER).read([USES])
    mark = tmp_path / "cache/apt-1/users/a"
    old = mark.stat().st_mtime - (scratch.MARK_MINUTES + 1) * 60
    os.utime(mark, (old, old))
    later = run_of(tmp_path, "b")
    later.read([])
    later.tidy()
    assert there(tmp_path) == []


def test_a_directory_is_not_removed_under_a_script_that_uses_it(tmp_path: Path) -> None:
    """Even without its mark, the script's lock keeps it until the script has ended."""
    run = run_of(tmp_path, "a")
    run.read([USES])
    lock = tmp_path / "cache/apt-1/lock"
    with subprocess.Popen(["flock", str(lock), "sh", "-c", "echo in; sleep 1"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"in\n"
        run.tidy()
        assert holder.poll() is not None or not lock.exists()
    assert there(tmp_path) == []


def test_a_directory_that_was_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    """Many runs use and remove it at the same time; each one finds it whole."""
    checks = Fact(
        "test.checks",
        script(scratch.USE + 'scratch apt-1 && echo "$$" >"$d/own" && sleep 0.02 && [ "$(cat "$d/own")" = "$$" ]'),
        lambda result: result.code == 0,
        scratch=True,
    )
    found: list[bool] = []

    def use(number: int) -> None:
        for turn in range(5):
            run = run_of(tmp_path, f"r{number}-{turn}")
            run.read([checks])
            found.append(run.store(checks))
            run.tidy()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 20
    assert there(tmp_path) == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Only root can write there; a link is removed, and what it leads to stays."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/apt-1").symlink_to(kept)
    (kept / "file").touch()
    run = run_of(tmp_path, "a")
    run.read([])
    run.tidy()
    assert there(tmp_path) == ["kept", "kept/file"]


def test_a_host_that_is_gone_keeps_them(tmp_path: Path) -> None:
    run = run_of(tmp_path, "a")
    run.read([USES])
    assert isinstance(run.transport, Here)
    run.transport.down = True
    run.tidy()
    assert "cache/apt-1/lists" in there(tmp_path)


@pytest.mark.parametrize("answer", [b"a\n" * 200_000, b"a" * 4_000_000, b"a@" * 500_000 + b"\n"])
def test_an_answer_without_end_does_not_end_the_run(answer: bytes) -> None:
    """The owners that a host names are read before anything is known about the host; no answer raises, or takes
    long."""
    run = host_run(lambda _cmd: Result(0, answer))
    run.untidy = True
    begin = time.thread_time()
    run.tidy()
    assert within(time.thread_time() - begin, 1)


def test_a_directory_says_whose_it_is(tmp_path: Path) -> None:
    run_of(tmp_path, "a").read([USES])
    (mark,) = tmp_path.rglob("users/a")
    assert mark.read_text() == f"{run_owner.owner('a')}\n"
