"""The journal of rollouts: what it keeps when a process is killed, and a file that is locked, full, damaged, foreign or
newer."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from rigwright.core.errors import UsageError
from rigwright.core.files import sqlite
from rigwright.engine import run_owner
from rigwright.fleet import journal
from rigwright.fleet.journal import Rollout
from tests.paths import ROOT

HOSTS = ("gpu01", "gpu02", "gpu03", "gpu04")
ROLLOUT = Rollout("r1", "/i", "/p", "gpu", "", 2, 1, HOSTS, (HOSTS[:1], HOSTS[1:3]), runs=("r1",))


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of the journal, which does not exist yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return journal.file()


def elsewhere(text: str) -> str:
    """Runs Python in another process, which has `journal` and the rollout R; returns its output."""
    head = f"from rigwright.fleet import journal; from tests.fleet.test_journal import ROLLOUT as R; {text}"
    done = subprocess.run(
        [sys.executable, "-c", head], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def test_what_is_written_is_read(file: Path) -> None:
    journal.begin(ROLLOUT)
    assert journal.last_stopped() == ROLLOUT
    journal.record_begin("r1", {"gpu01": "aa", "gpu02": "bb", "gpu03": "cc"})
    assert journal.last_stopped().begun == ("gpu01", "gpu02", "gpu03")
    journal.record_end("r1", "gpu01", "aa", done=True)
    journal.record_end("r1", "gpu02", "bb", done=False)
    found = journal.last_stopped()
    assert (found.done, found.begun, found.pending) == ({"gpu01": "aa"}, ("gpu03",), ("gpu02", "gpu03", "gpu04"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    journal.end("r1")
    with pytest.raises(UsageError, match="no rollout was stopped"):
        journal.last_stopped()


def test_the_newest_counts_and_no_limit_is_kept() -> None:
    journal.begin(replace(ROLLOUT, run="r0", host="all", max_fail=None))
    assert journal.last_stopped().max_fail is None
    journal.leave("r1")
    journal.leave("r0")
    journal.begin(ROLLOUT)
    assert journal.last_stopped().run == "r1"


def test_what_a_killed_process_wrote_is_there() -> None:
    text = (
        "journal.begin(R); journal.record_begin('r1', {'gpu01': 'aa'}); journal.record_end('r1', 'gpu01', 'aa', True);"
    )
    elsewhere(f"{text} journal.record_begin('r1', {{'gpu02': 'bb'}}); import os; os.kill(os.getpid(), 9)")
    found = journal.last_stopped()
    assert (found.done, found.begun) == ({"gpu01": "aa"}, ("gpu02",))
    journal.resume(replace(found, runs=("r1", "r2")))
    assert journal.last_stopped().runs == ("r1", "r2")


def test_a_second_controller_is_refused_while_the_first_is_alive() -> None:
    journal.begin(ROLLOUT)
    for call in ("journal.begin(R)", "journal.resume(R)"):
        said = elsewhere(call)
        assert f"run r1 is at work on gpu[01:04] (process {os.getpid()} of this machine)" in said
        assert f"kill {os.getpid()}; then provision --resume continues it" in said
    replaced = (
        "from msgspec.structs import replace; journal.begin(replace(R, run='r2', runs=('r2',), host='other', hosts={}))"
    )
    assert "run r1 is at work on gpu04 (process" in elsewhere(replaced.format("('gpu04', 'gpu05')"))
    assert elsewhere(replaced.format("('gpu05',)")) == ""
    journal.leave("r1")
    assert elsewhere("journal.resume(R)") == ""
    assert elsewhere("journal.begin(R)") == ""


def test_a_controller_in_another_container_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process numbers say nothing here."""
    with monkeypatch.context() as patch:
        patch.setattr(run_owner, "_machine", lambda: "elsewhere-2f.402")
        journal.begin(ROLLOUT)
    journal.resume(journal.last_stopped())


def test_a_rollout_that_ended_meanwhile_is_not_continued() -> None:
    journal.begin(ROLLOUT)
    found = journal.last_stopped()
    journal.end("r1")
    with pytest.raises(UsageError, match="the rollout of run r1 has ended meanwhile"):
        journal.resume(found)


def test_a_moment_of_another_process_is_waited_for_and_then_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.begin(ROLLOUT)
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, other.rollback)
    timer.start()
    journal.record_begin("r1", {"gpu01": "aa"})
    timer.join()
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(sqlite, "BUSY_S", 0.2)
    with pytest.raises(UsageError, match=r"another process has held it for 0\.2 s"):
        journal.record_begin("r1", {"gpu01": "aa"})
    other.close()


def test_a_full_disk_is_named_before_any_host(file: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
    said = elsewhere(f"{limit} journal.begin(R)")
    assert str(file) in said
    assert "so no host was changed, because a rollout that stops could not be resumed" in said
    assert "df shows whether the disk is full" in said


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda path: path.write_bytes(b"no database at all " * 99), "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000] + b"\xff" * 9000), "is damaged"),
        (lambda path: sqlite3.connect(path).execute("PRAGMA user_version = 2"), "a newer rigwright"),
        (lambda path: sqlite3.connect(path).execute("PRAGMA application_id = 7"), "is another program's database"),
        (
            lambda path: sqlite3.connect(path, isolation_level=None).execute("UPDATE rollout SET runs = '{'"),
            "is damaged",
        ),
        (lambda path: sqlite3.connect(path, isolation_level=None).execute("DROP TABLE host"), "has other tables"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_way_out(file: Path, damage: object, found: str) -> None:
    journal.begin(ROLLOUT)
    assert callable(damage)
    damage(file)
    with pytest.raises(UsageError) as caught:
        journal.last_stopped()
    assert caught.value.where == str(file)
    assert found in caught.value.found
    if found == "is another program's database":
        assert caught.value.fix == "set XDG_STATE_HOME to a folder of your own"
        return
    command = caught.value.fix.partition("mkdir")[1:]
    subprocess.run(["sh", "-c", "".join(command).partition(", then ")[0]], check=True, timeout=10)
    journal.begin(ROLLOUT)
    assert journal.last_stopped() == ROLLOUT
    assert (file.parent / "aside" / file.name).exists()


def test_the_file_has_no_secret(file: Path) -> None:
    journal.begin(ROLLOUT)
    with sqlite3.connect(file) as database:
        rows = [*database.execute("SELECT * FROM rollout"), *database.execute("SELECT * FROM host")]
    assert json.loads(rows[0][2]) == ["r1"]
    assert {len(row) for row in rows} == {6, 10}
