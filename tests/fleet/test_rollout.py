"""Rollouts on simulated hosts: batches, the stop rule, and resuming a stopped rollout."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rigwright.core import host_ranges
from rigwright.core.files import sqlite
from rigwright.engine import run_owner
from rigwright.fleet import journal, rollout
from tests.cli.run_command import run_command
from tests.fleet import fake_fleet
from tests.fleet.fake_fleet import Fleet

HOSTS = tuple(f"gpu{number:02}" for number in range(1, 21))


@pytest.mark.parametrize(
    ("sizes", "total", "found"),
    [
        ("1,10%,100%", 20, [1, 2, 17]),
        ("1,10%,100%", 5, [1, 1, 3]),
        ("1", 3, [1, 1, 1]),
        ("2, 3", 9, [2, 3, 3, 1]),
        ("100%", 4, [4]),
        ("1,50%", 10, [1, 5, 4]),
        ("10", 3, [3]),
        ("1%", 2, [1, 1]),
    ],
)
def test_batches(sizes: str, total: int, found: list[int]) -> None:
    hosts = [f"h{number}" for number in range(total)]
    made = rollout.batches(hosts, sizes.split(","))
    assert [len(batch) for batch in made] == found
    assert [name for batch in made for name in batch] == hosts


@given(st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=1, max_size=4), st.integers(0, 200))
def test_batches_lose_no_host(sizes: list[tuple[int, bool]], total: int) -> None:
    words = [f"{number}{'%' if percent else ''}" for number, percent in sizes]
    hosts = [f"h{number}" for number in range(total)]
    assert [name for batch in rollout.batches(hosts, words) for name in batch] == hosts


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], ""),
        (["a"], "a"),
        (["gpu01", "gpu02"], "gpu01, gpu02"),
        (["gpu01", "gpu02", "gpu03"], "gpu[01:03]"),
        (["gpu9", "gpu10", "gpu11", "gpu13"], "gpu[9:11], gpu13"),
        (["gpu08", "gpu09", "gpu10"], "gpu[08:10]"),
        (["gpu98", "gpu99", "gpu100"], "gpu[98:100]"),
        (["gpu08", "gpu09", "gpu010"], "gpu08, gpu09, gpu010"),
        (["gpu1", "gpu10", "gpu11", "gpu9"], "gpu1, gpu[9:11]"),
        (["r1n1.lab", "r1n2.lab", "r1n3.lab", "web"], "r1n[1:3].lab, web"),
        (["10.0.0.7", "10.0.0.8", "10.0.0.9"], "10.0.0.[7:9]"),
        (["c", "b", "a"], "a, b, c"),
        (["n3", "n2", "n1"], "n[1:3]"),
    ],
)
def test_many_names_in_a_few_words(names: list[str], words: str) -> None:
    assert host_ranges.folded(names) == words
    if words:
        assert sorted(name for part in words.split(", ") for name in host_ranges.expand(part)) == sorted(names)


@given(st.lists(st.from_regex(r"[a-z]{0,2}[0-9]{1,3}[a-z]?", fullmatch=True), max_size=30))
def test_names_come_back_from_their_few_words(names: list[str]) -> None:
    words = host_ranges.folded(names)
    assert sorted(name for part in words.split(", ") if part for name in host_ranges.expand(part)) == sorted(names)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Returns a fleet of twenty hosts."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return fake_fleet.fleet(tmp_path, monkeypatch, *HOSTS)


def provision(gpus: Fleet, capsys: pytest.CaptureFixture[str], **words: Any) -> tuple[int, str, dict[str, Any]]:
    """Runs provision; returns the exit code, the text and the JSON document."""
    file = gpus.folder / "out.json"
    given = {"host": "gpu", "inventory": gpus.inventory, "playbook": gpus.playbook, "yes": True}
    given = {key: value for key, value in {**given, **words, "json": str(file)}.items() if value is not None}
    code = run_command("provision", **given)
    return code, "".join(capsys.readouterr()), json.loads(file.read_text())


RESUME = {"resume": True, "host": None, "inventory": "", "playbook": ""}


def test_a_rollout_goes_batch_by_batch(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, made = provision(gpus, capsys, serial="1,10%,100%")
    assert code == 0, text
    assert sorted(gpus.made) == list(HOSTS)
    assert gpus.made[0] == "gpu01"
    assert set(gpus.made[1:3]) == {"gpu02", "gpu03"}
    assert "Batch 1 of 3: 1 host, gpu01\n" in text
    assert "Batch 3 of 3: 17 hosts, gpu[04:20]\n" in text
    assert "Rollout done: 20 hosts." in text
    assert made["rollout"] == {
        "batches": [list(HOSTS[:1]), list(HOSTS[1:3]), list(HOSTS[3:])],
        "max_fail": 0, "reboots": 1, "goes_on_with": "", "stopped": "", "left": [],
    }  # fmt: skip
    assert text.count("\nPlan: ") == 1
    code, text, made = provision(gpus, capsys, **RESUME)
    assert code == 1
    assert "--resume: no rollout was stopped" in text


def test_a_canary_that_fails_ends_it(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.broken = {"gpu01"}
    code, text, made = provision(gpus, capsys, serial="1,100%")
    assert code == 1
    assert gpus.made == []
    assert (
        "Stopped: 1 of 20 hosts failed (gpu01), more than --max-fail 0; not attempted: gpu[02:20]\n"
        "  fix:      correct the cause, then invoke provision --resume\n" in text
    )
    assert "Batch 2" not in text
    assert {name: host["status"] for name, host in made["hosts"].items()} == {
        "gpu01": "failed", **dict.fromkeys(HOSTS[1:], "not_attempted"),
    }  # fmt: skip
    assert made["hosts"]["gpu01"]["error"] == {
        "where": "Room",
        "found": "no space is left for /srv/room",
        "expected": "",
        "fix": "on the host: df -h /srv/room; then run the same command again",
    }
    assert made["rollout"]["left"] == list(HOSTS)


def test_it_goes_on_where_it_stopped(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.broken = {"gpu03"}
    first = provision(gpus, capsys, serial="1,10%,100%")[2]["run"]
    assert sorted(gpus.made) == ["gpu01", "gpu02"]
    gpus.broken, gpus.connected = set(), []
    code, text, made = provision(gpus, capsys, **RESUME)
    assert code == 0, text
    assert f"Going on with the rollout of run {first}: 2 of 20 hosts done\n" in text
    assert f"  inventory {gpus.inventory}, playbook {gpus.playbook}, --host gpu\n" in text
    assert sorted(set(gpus.connected)) == list(HOSTS[2:])
    assert gpus.made[2] == "gpu03"
    assert "Batch 1 of 2: 1 host, gpu03\n" in text
    assert made["rollout"]["goes_on_with"] == first
    assert sorted(made["hosts"]) == list(HOSTS[2:])
    assert "Rollout done: 20 hosts." in text


def test_another_plan_is_for_hosts_that_are_done_too(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.broken = {"gpu02"}
    provision(gpus, capsys, serial="1,100%", max_fail="0")
    assert "gpu01" in gpus.made
    gpus.broken, gpus.connected, gpus.made = set(), [], []
    (gpus.folder / "play.yml").write_text(fake_fleet.PLAY.replace("room}", 'room, mode: "0755"}'))
    code, text, _ = provision(gpus, capsys, **RESUME)
    assert code == 0
    assert sorted(gpus.made) == list(HOSTS)
    assert gpus.made[0] == "gpu01"
    assert "Batch 1 of 2: 1 host, gpu01\n" in text


def test_as_many_may_fail_as_was_said(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.broken, gpus.away = {"gpu01"}, {"gpu05"}
    code, text, made = provision(gpus, capsys, serial="1,2,100%", max_fail="2")
    assert code == 1
    assert sorted(gpus.made) == [name for name in HOSTS if name not in ("gpu01", "gpu05")]
    assert "Rollout: 2 of 20 hosts failed (gpu01, gpu05), the others are done\n" in text
    assert made["rollout"]["stopped"] == ""
    assert made["rollout"]["left"] == ["gpu01", "gpu05"]
    gpus.broken, gpus.away = set(), set()
    assert provision(gpus, capsys, **RESUME)[0] == 0
    assert sorted(gpus.made) == list(HOSTS)


def test_a_host_that_is_away_counts_when_its_batch_comes(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.away = {"gpu03"}
    code, text, made = provision(gpus, capsys, serial="1,2")
    assert code == 3
    assert gpus.made == ["gpu01"]
    assert "failed (gpu03), more than --max-fail 0; not attempted: gpu02, gpu[04:20]" in text
    assert made["hosts"]["gpu03"]["status"] == "unreachable"


def test_the_stop_rule_counts_within_a_batch(
    gpus: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rigwright.fleet import pool

    monkeypatch.setattr(pool, "WORKERS", 2)
    gpus.broken = set(HOSTS)
    code, text, made = provision(gpus, capsys, max_fail="1")
    assert code == 1
    failed = [name for name, host in made["hosts"].items() if host["status"] == "failed"]
    assert 2 <= len(failed) <= 4  # the two failed hosts, and the hosts that the two workers were working on
    assert sum(host["status"] == "not_attempted" for host in made["hosts"].values()) == 20 - len(failed)
    assert "Stopped: " in text


def test_what_was_under_way_as_it_was_enough_is_no_host_that_was_not_attempted(
    gpus: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = threading.Barrier(20)
    gpus.broken, gpus.before = set(HOSTS), lambda _name: begun.wait(10)
    _, text, made = provision(gpus, capsys, max_fail="0")
    assert {host["status"] for host in made["hosts"].values()} == {"failed"}
    assert "Stopped: 20 of 20 hosts failed (gpu[01:20]), more than --max-fail 0\n" in text


def test_hosts_that_are_as_wanted_are_in_no_batch(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.made = ["gpu01", "gpu02"]
    code, _text, made = provision(gpus, capsys, serial="1,100%")
    assert code == 0
    assert made["rollout"]["batches"] == [["gpu03"], list(HOSTS[3:])]
    assert made["hosts"]["gpu01"]["status"] == "ok"


def test_without_these_words_all_go_at_once(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.broken = {"gpu01"}
    code, text, made = provision(gpus, capsys)
    assert code == 1
    assert sorted(gpus.made) == list(HOSTS[1:])
    assert "Batch" not in text
    assert "rollout" not in made


@pytest.mark.parametrize(
    ("words", "where", "found"),
    [
        ({"serial": "lots"}, "--serial", "'lots' is no list of batch sizes"),
        ({"serial": "1", "max_fail": "-1"}, "--max-fail", "'-1' is no number of hosts"),
        ({"max_fail": "10%"}, "--max-fail", "'10%' is no number of hosts"),
        ({"reboots": "0"}, "--reboots", "'0' is no number of hosts"),
        ({"resume": True, "serial": "1"}, "--resume", "keeps the batches"),
        ({"resume": True}, "--resume", "no rollout was stopped"),
    ],
)
def test_a_bad_word_is_named_before_any_host(
    gpus: Fleet, capsys: pytest.CaptureFixture[str], words: dict[str, Any], where: str, found: str
) -> None:
    code, text, made = provision(gpus, capsys, **words)
    assert code == 1
    assert made["error"]["where"] == where
    assert found in made["error"]["found"]
    assert text.count("error") == 1
    assert gpus.connected == []


def test_words_that_contradict_the_rollout_are_named(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.broken = {"gpu01"}
    provision(gpus, capsys, serial="1")
    _, _, made = provision(gpus, capsys, **{**RESUME, "host": "gpu02"})
    assert "was of --host gpu, not gpu02" in made["error"]["found"]
    _, _, made = provision(gpus, capsys, **{**RESUME, "playbook": str(gpus.folder / "other.yml")})
    assert f"was of --playbook {gpus.playbook}, not" in made["error"]["found"]
    gpus.broken = set()
    assert provision(gpus, capsys, resume=True)[0] == 0  # the same options as before are allowed


def test_where_no_state_can_be_kept_nothing_is_begun(
    gpus: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (gpus.folder / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(gpus.folder / "file"))
    code, _text, made = provision(gpus, capsys, serial="1")
    assert code == 1
    assert "could not be resumed" in made["error"]["found"]
    assert gpus.made == []


def test_a_host_that_left_the_inventory_is_named(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.broken = {"gpu01"}
    provision(gpus, capsys, serial="1")
    file = Path(gpus.inventory)
    file.write_text(file.read_text().replace("    gpu07:\n", ""))
    code, _, made = provision(gpus, capsys, **RESUME)
    assert code == 1
    assert made["error"]["found"].startswith(f"{file} has no gpu07 any more")


def test_a_new_rollout_of_the_same_hosts_takes_the_place_of_the_old(
    gpus: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus.broken = {"gpu01"}
    provision(gpus, capsys, serial="1")
    provision(gpus, capsys, serial="2", host="gpu01,gpu02")
    gpus.broken = set()
    assert provision(gpus, capsys, serial="1")[0] == 0
    assert journal.last_stopped().host == "gpu01,gpu02"
    assert provision(gpus, capsys, serial="1", host="gpu01,gpu02")[0] == 0
    assert "no rollout was stopped" in provision(gpus, capsys, resume=True)[1]


def _locked(file: Path) -> None:
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    _OPEN.append(other)


_OPEN: list[sqlite3.Connection] = []
ALIVE = "UPDATE rollout SET controller = '{}'"
JOURNALS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "locked": (_locked, "another process has held it for 0.1 s", "fuser -v"),
    "corrupt": (lambda file: file.write_bytes(b"no database at all " * 99), "is damaged", "mkdir"),
    "newer": (lambda file: _sql(file, "PRAGMA user_version = 9"), "a newer rigwright", "use that rigwright; or mkdir"),
    "second controller": (
        lambda file: _sql(file, ALIVE.format(run_owner.owner("r7"))),
        "run r7 is at work on gpu[01:20]",
        f"kill {os.getpid()}; then provision --resume continues it",
    ),
}


def _sql(file: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute(statement)


@pytest.mark.parametrize("words", [{"serial": "1,100%"}, RESUME], ids=["begun", "resumed"])
@pytest.mark.parametrize(("trouble", "found", "fix"), JOURNALS.values(), ids=JOURNALS)
def test_a_journal_that_cannot_be_used_is_one_error_before_any_change(
    gpus: Fleet,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[Path], object],
    found: str,
    fix: str,
    words: dict[str, Any],
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.1)
    gpus.broken = {"gpu01"}
    provision(gpus, capsys, serial="1,100%")
    gpus.broken = set()
    trouble(journal.file())
    try:
        code, text, made = provision(gpus, capsys, **words)
    finally:
        while _OPEN:
            _OPEN.pop().close()
    assert (code, gpus.made) == (1, [])
    assert found in made["error"]["found"]
    assert fix in made["error"]["fix"]
    assert text.count("error") == 1


def test_a_journal_that_is_held_for_a_while_is_a_warning_and_is_written_later(
    gpus: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts are being changed: the run must not end because of a file of this machine, or wait for it once for each
    host."""
    monkeypatch.setattr(sqlite, "BUSY_S", 0.1)

    def before(name: str) -> None:
        if name == "gpu02":
            _locked(journal.file())
        if name == "gpu20":
            until = time.monotonic() + 120
            while len(gpus.made) < 19 and time.monotonic() < until:
                time.sleep(0.01)
            _OPEN.pop().close()

    gpus.before, gpus.broken = before, {"gpu20"}
    code, text, made = provision(gpus, capsys, serial="1,100%")
    assert code == 1
    assert text.count("another process has held it for 0.1 s; --resume would plan hosts again that are done") == 1
    assert made["rollout"]["left"] == ["gpu20"]
    assert journal.last_stopped().pending == ("gpu20",)


def test_a_journal_that_is_damaged_under_way_stops_no_host(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.before = lambda name: JOURNALS["corrupt"][0](journal.file()) if name == "gpu01" else None
    code, text, _ = provision(gpus, capsys, serial="1,100%")
    assert (code, sorted(gpus.made)) == (0, list(HOSTS))
    assert text.count("is damaged") == 1
    assert "Rollout done: 20 hosts." in text


def test_half_of_the_hosts_are_away(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.away = set(HOSTS[::2])
    code, text, made = provision(gpus, capsys, max_fail="20")
    assert code == 3
    assert sorted(gpus.made) == list(HOSTS[1::2])
    assert {host["status"] for name, host in made["hosts"].items() if name in gpus.away} == {"unreachable"}
    assert "Rollout: 10 of 20 hosts failed" in text
    assert journal.last_stopped().pending == HOSTS[::2]
    gpus.away, gpus.connected = set(), []
    assert provision(gpus, capsys, **RESUME)[0] == 0
    assert sorted(gpus.made) == list(HOSTS)
    assert set(gpus.connected) == set(HOSTS[::2])
