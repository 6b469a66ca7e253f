"""The history: its records, queries on them, and a file that is damaged, foreign, newer or read-only."""

from __future__ import annotations

import copy
import datetime
import json
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rigwright.core.errors import HistoryError, UsageError
from rigwright.core.files import sqlite
from rigwright.history import History, database as history_database, file, set_aside
from tests.cli.run_command import run_command

NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.timezone.utc)
FINDING = {"check": "swap.off", "subject": "swap", "verdict": "fail", "seen": "8 GiB", "expected": "none", "cause": "",
           "fix": ""}  # fmt: skip
CHANGE = {
    "step": "Swap off", "action": "change", "subject": "swap", "before": "8 GiB", "after": "", "disruptive": False,
    "leads_to": "", "done": True,
}  # fmt: skip


def run_of(number: int, facts: dict[str, Any] | None = None, **host: Any) -> dict[str, Any]:
    """Returns the document of run `r<number>`, `number` hours after noon, of the host servbadge at 192.0.2.10."""
    one = {
        "address": "192.0.2.10", "status": "ok", "error": None, "steps": [], "changes": [], "findings": [],
        "kept": facts or {}, "simulated": "", "rebooted": False, "seconds": 1.5,
    }  # fmt: skip
    at = NOON + datetime.timedelta(hours=number)
    return {
        "run": f"r{number}", "command": "verify", "started": at.isoformat(), "playbook": "p.yml",
        "inventory": "inventory",
        "ended": (at + datetime.timedelta(seconds=2)).isoformat(), "exit_code": 0, "error": None,
        "hosts": {"servbadge": {**one, **host}},
    }  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Returns the path for a history."""
    return tmp_path / "state" / "history.sqlite"


@pytest.fixture
def history(path: Path) -> Any:
    """Yields a history without runs."""
    with History.open(path) as opened:
        yield opened


# --- runs


def test_a_run_comes_back_as_it_was(history: History) -> None:
    steps = [
        {"name": "Swap off", "status": "changed", "reason": "", "notes": []},
        {"name": "Fine", "status": "ok", "reason": "", "notes": []},
    ]
    error = {"where": "Swap off", "found": "no", "expected": "yes", "fix": "swapoff"}
    told = run_of(0, steps=steps, changes=[CHANGE], findings=[FINDING], error=error, status="failed", rebooted=True)
    history.record(told)
    found = history.run("r0")
    assert (found["run"], found["command"], found["playbook"], found["exit_code"]) == ("r0", "verify", "p.yml", 0)
    assert (found["started"], found["ended"]) == (told["started"], told["ended"])
    host = found["hosts"]["servbadge"]
    assert host["steps"] == [{"name": "Swap off", "status": "changed", "reason": ""}]
    assert (host["steps_planned"], host["changes"], host["findings"]) == (2, [CHANGE], [FINDING])
    assert (host["status"], host["error"], host["rebooted"]) == ("failed", error, True)


def test_runs_newest_first_with_what_counts(history: History) -> None:
    history.record(run_of(0, changes=[CHANGE, {**CHANGE, "done": False}]))
    history.record(run_of(1, findings=[FINDING, {**FINDING, "verdict": "pass"}, {**FINDING, "verdict": "unknown"}]))
    second, first = history.runs()
    assert (first.id, first.started, first.seconds) == ("r0", NOON, 2.0)
    assert [(one.name, one.changes, one.failed) for one in (*first.hosts, *second.hosts)] == [
        ("servbadge", 1, 0),
        ("servbadge", 0, 2),
    ]
    assert [run.id for run in history.runs(limit=1)] == ["r1"]
    assert [run.id for run in history.runs(host="servbadge")] == ["r1", "r0"]
    assert history.runs(host="other") == []


def test_a_run_is_named_by_its_beginning(history: History) -> None:
    for number in (0, 1, 10):
        history.record(run_of(number))
    assert [history.run(word)["run"] for word in ("last", "r0", "r1", "r10")] == ["r10", "r0", "r1", "r10"]
    for word, found in (("r", "3 runs begin so"), ("x", "no run of that id"), ("", "no run of that id")):
        with pytest.raises(UsageError, match=found):
            history.run(word)


def test_a_run_that_is_recorded_again_is_one_run(history: History) -> None:
    for _ in range(2):
        history.record(run_of(0, {"system.cpu": "one"}, findings=[FINDING]))
    assert [run.hosts[0].failed for run in history.runs()] == [1]
    assert history.diff("servbadge", NOON - datetime.timedelta(days=1)) == []


# --- facts


def test_a_fact_is_kept_once_while_it_stays(history: History) -> None:
    for number, kernel in enumerate(("6.1", "6.1", "6.8", "6.1")):
        history.record(run_of(number, {"system.running_kernel": kernel}))
        seen = history.last(history.named("servbadge"), "system.running_kernel")
        assert seen is not None
        assert (seen.value, seen.run) == (kernel, f"r{max(0, number - 1) if number < 2 else number}")
    assert seen.first_seen == seen.last_seen == NOON + datetime.timedelta(hours=3, seconds=2)
    rows = history._database.execute("SELECT value FROM fact ORDER BY id").fetchall()
    assert [row[0] for row in rows] == ['"6.1"', '"6.8"', '"6.1"']


def test_what_no_run_saw(history: History) -> None:
    history.record(run_of(0, {"system.cpu": "one"}))
    assert (
        history.last(history.named("servbadge"), "never") is history.last(history.named("other"), "system.cpu") is None
    )


def test_an_endless_value_is_not_kept(history: History) -> None:
    history.record(run_of(0, {"system.cpu": "one"}))
    history.record(run_of(1, {"system.cpu": "x" * 70000}))
    seen = history.last(history.named("servbadge"), "system.cpu")
    assert seen is not None
    assert seen.value == "one"


def test_a_name_at_another_address_is_another_machine(history: History) -> None:
    """A simulated servbadge must not appear in the history of the real one."""
    history.record(run_of(0, {"system.cpu": "real"}))
    history.record(run_of(1, {"system.cpu": "lab"}, address="10.99.1.10"))
    history.record(run_of(2, {"system.cpu": "real"}))
    assert history.diff("servbadge", NOON) == []
    assert history.changed(history.named("servbadge", "10.99.1.10") or 0, NOON) == []
    for address, value in (("", "real"), ("192.0.2.10", "real"), ("10.99.1.10", "lab")):
        seen = history.last(history.named("servbadge", address), "system.cpu")
        assert seen is not None
        assert seen.value == value


def test_when_a_host_was_last_as_it_should_be(history: History) -> None:
    """A run with a fault, or without findings, does not count; a provision does, unless it was interrupted."""
    runs: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("fleet.check", "failed", {}),
        ("verify", "ok", {}),
        ("fleet.check", "failed", {}),
        ("facts", "ok", {}),
        ("plan", "ok", {}),
        ("verify", "unreachable", {"error": {"found": "away"}}),
        ("provision", "failed", {"findings": [FINDING]}),
        ("provision", "failed", {"error": {"found": "no room"}}),
        ("verify", "ok", {"address": "10.99.1.10"}),
        ("provision", "changed", {}),
        ("fleet.report", "ok", {}),
    )
    seen = []
    for number, (command, status, more) in enumerate(runs):
        code = 130 if command == "fleet.report" else 0  # interrupted
        said = {"command": command, "exit_code": code}
        history.record({**run_of(number, {"system.cpu": str(number)}, status=status, **more), **said})
        at = history.last_good(history.named("servbadge", "192.0.2.10"))
        seen.append((at - NOON).total_seconds() // 3600 if at else None)
    assert seen == [None, 1, 1, 1, 1, 1, 6, 6, 6, 9, 9]
    assert history.last_good(history.named("another", "192.0.2.10")) is None


def test_what_changed_since(history: History) -> None:
    gpus = [{"uuid": "GPU-a", "power_limit_w": 300.0}, {"uuid": "GPU-b", "power_limit_w": 300.0}]
    history.record(run_of(0, {"gpu.gpus": gpus, "system.running_kernel": "6.1"}))
    history.record(
        run_of(1, {"gpu.gpus": [gpus[1], {**gpus[0], "power_limit_w": 200.0}], "system.running_kernel": "6.8"})
    )
    history.record(run_of(2, {"gpu.gpus": [gpus[1], {"uuid": "GPU-c", "power_limit_w": 300.0}]}, changes=[CHANGE]))
    since = NOON + datetime.timedelta(minutes=30)
    told = [(one.run, one.kind, one.subject, one.before, one.after) for one in history.diff("servbadge", since)]
    assert told == [
        ("r1", "fact", "gpu.gpus[GPU-a].power_limit_w", "300", "200"),
        ("r1", "fact", "system.running_kernel", "6.1", "6.8"),
        ("r2", "fact", "gpu.gpus[GPU-c]", "", "new"),
        ("r2", "fact", "gpu.gpus[GPU-a]", "there", "gone"),
        ("r2", "change", "swap", "8 GiB", ""),
    ]
    later = NOON + datetime.timedelta(hours=1, minutes=30)
    assert [one.run for one in history.diff("servbadge", later)] == ["r2"] * 3
    with pytest.raises(UsageError, match="no run has seen it") as caught:
        history.diff("servbadg", NOON)
    assert caught.value.fix == "the history knows servbadge"


# --- old runs


def test_old_runs_and_values_go_and_the_newest_stays(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIGWRIGHT_HISTORY_DAYS", "30")
    other = run_of(1, {"system.cpu": "other's"}, address="192.0.2.11")
    other["hosts"]["other"] = other["hosts"].pop("servbadge")
    for told in (run_of(0, {"system.cpu": "old"}, findings=[FINDING]), other, run_of(24, {"system.cpu": "new"})):
        history.record(told)
    assert len(history.runs()) == 3
    history.record(run_of(24 * 60, {"system.running_kernel": "6.8"}))
    assert [run.id for run in history.runs()] == ["r1440", "r1"]  # the last known run of `other` stays
    seen, others = (
        history.last(history.named("servbadge"), "system.cpu"),
        history.last(history.named("other"), "system.cpu"),
    )
    assert seen is not None
    assert others is not None
    assert (seen.value, others.value) == ("new", "other's")
    counts = [history._database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
              for table in ("fact", "saying", "finding")]  # fmt: skip
    assert counts == [3, 0, 0]


def test_room_is_given_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIGWRIGHT_HISTORY_DAYS", "1")
    findings = [{**FINDING, "subject": f"{number} {'x' * 900}"} for number in range(2000)]
    with History.open(path) as history:
        history.record(run_of(0, findings=findings))
    full = path.stat().st_size
    with History.open(path) as history:
        history.record(run_of(100))
    assert path.stat().st_size < full / 2


@pytest.mark.parametrize("given", ["x", "0", "-1", "1.5", "²", "9" * 20])
def test_days_that_are_none(history: History, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("RIGWRIGHT_HISTORY_DAYS", given)
    with pytest.raises(UsageError, match=given):
        history.record(run_of(0))
    assert history.runs() == []


# --- the file


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIGWRIGHT_HISTORY", "~/h.sqlite")
    monkeypatch.setenv("HOME", "/home/anna")
    assert str(file()) == "/home/anna/h.sqlite"
    monkeypatch.delenv("RIGWRIGHT_HISTORY")
    monkeypatch.setenv("XDG_STATE_HOME", "/home/anna/state")
    assert str(file()) == "/home/anna/state/rigwright/history.sqlite"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("SUDO_USER", raising=False)
    assert str(file()) == "/home/anna/.local/state/rigwright/history.sqlite"


def test_only_the_owner_reads_it(history: History) -> None:
    assert history.path.stat().st_mode & 0o777 == 0o600
    assert history.path.parent.stat().st_mode & 0o777 == 0o700
    assert history._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_nothing_is_made_to_read(path: Path) -> None:
    with pytest.raises(HistoryError, match="no history yet"):
        History.open(path, write=False)
    assert not path.parent.exists()


@pytest.mark.parametrize("text", [b"not a database at all " * 60, b"SQLite format 3\0" + b"\1" * 4000])
def test_a_damaged_file_is_named_and_left(path: Path, text: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(text)
    with pytest.raises(HistoryError, match="is damaged") as caught:
        History.open(path)
    assert caught.value.where == str(path)
    assert "history.set-aside" in caught.value.fix
    assert path.read_bytes() == text


def test_damage_within(path: Path) -> None:
    """The database opens, and the pages that hold the runs are damaged."""
    with History.open(path) as history:
        for number in range(50):
            history.record(run_of(number, {"system.cpu": "x" * number}))
    text = bytearray(path.read_bytes())
    text[4096:] = b"\xff" * (len(text) - 4096)
    path.write_bytes(text)
    with pytest.raises(HistoryError, match="is damaged"), History.open(path) as history:
        history.record(run_of(99))
    assert path.read_bytes() == bytes(text)


DAMAGE = {
    "no JSON": "UPDATE value SET text = '{'",
    "bytes": "UPDATE value SET text = x'ff00ff'",
    "deep JSON": f"UPDATE value SET text = '{'[' * 100_000}'",
    "a time that is text": "UPDATE run SET started = 'abc'",
    "a time that is too late": "UPDATE run SET ended = 1e300",
    "a time without end": "UPDATE run SET started = 9e999",
    "a fact at no time": "UPDATE seen SET first_seen = 'x'",
    "a fact too late": "UPDATE seen SET first_seen = 1e18, last_seen = 1e18",
    "the error of a run is no JSON object": "UPDATE outcome SET error = '{{'",
    "an error that is a list": "UPDATE outcome SET error = '[1]'",
    "seconds that are none": "UPDATE outcome SET seconds = 'abc'",
    "a name that is bytes": "UPDATE outcome SET name = x'00ff'",
    "a finding that is none": "UPDATE saying SET finding = 'x'",
    "an identity that is none": "UPDATE host SET identity = 'x'",
    "text that is no UTF-8": "UPDATE host SET name = CAST(x'ff80' AS TEXT)",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_value_that_is_damaged_gives_one_message(kind: str, path: Path) -> None:
    with History.open(path) as history:
        for number in (1, 2):
            history.record(run_of(number, {"system.cpu": f"cpu {number}"}, findings=[FINDING], changes=[CHANGE]))
    with sqlite3.connect(path) as database:
        database.execute(DAMAGE[kind])
    database.close()
    reads = (
        lambda history: history.machines(), lambda history: history.last(1, "system.cpu"),
        lambda history: history.everywhere("system.cpu"),
        lambda history: history.runs(), lambda history: history.run("last"),
        lambda history: history.previous("verify", 1),
        lambda history: history.last_good(1), lambda history: history.changed(1, NOON),
        lambda history: history.readings(7, 5),
    )  # fmt: skip
    refused = []
    for read in reads:
        try:
            with History.open(path, write=False) as history:
                read(history)
        except HistoryError as error:
            refused.append(error)
    assert refused
    assert all("is damaged" in error.found and "history.set-aside" in error.fix for error in refused)


def test_set_aside_keeps_all_and_begins_anew(path: Path) -> None:
    first = History.open(path)
    first.record(run_of(0))
    aside = set_aside(path)  # another process has the database open, so its last writes are in the -wal file
    first.close()
    with History.open(path) as history:
        assert history.runs() == []
    with History.open(aside, write=False) as history:
        assert [run.id for run in history.runs()] == ["r0"]


@pytest.mark.parametrize("write", [True, False])
def test_a_file_with_other_tables_is_refused_and_left(path: Path, write: bool) -> None:
    """A development version wrote the file, and its version number is the same."""
    History.open(path).close()
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE step RENAME TO stage")
    database.close()
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="other tables") as caught:
        History.open(path, write=write)
    assert "invoke history.set-aside" in caught.value.fix
    assert path.read_bytes() == before


@pytest.mark.parametrize(("step", "words"), [(1, "a newer rigwright"), (-1, "an older rigwright")])
def test_a_file_of_another_version_is_refused_and_left(path: Path, step: int, words: str) -> None:
    History.open(path).close()
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {history_database.VERSION + step}")
    database.close()
    before = path.read_bytes()
    for write in (True, False):
        with pytest.raises(HistoryError, match=words) as caught:
            History.open(path, write=write)
        assert "invoke history.set-aside" in caught.value.fix
    assert path.read_bytes() == before
    set_aside(path)
    History.open(path).close()


# --- baselines


def test_the_baseline_of_a_host_is_the_last_one_that_a_run_recorded(path: Path) -> None:
    with History.open(path) as history:
        assert history.machines().machines == ()
        for number, baseline in enumerate(({"memory_mib": 1}, {"memory_mib": 2, "modules": ["A 1 MiB"]}, None)):
            history.record(run_of(number, baseline=baseline))
        history.record(run_of(4, address="192.0.2.2"))
        baselines = {machine.address: machine.baseline for machine in history.machines().machines}
        assert baselines == {"192.0.2.10": {"memory_mib": 2, "modules": ["A 1 MiB"]}, "192.0.2.2": None}


# --- readings


CARDS = {"gpus": [
    {"uuid": "GPU-1", "temperature_c": 61, "power_w": 180.5}, {"uuid": "", "temperature_c": 50, "power_w": 1.0},
    {"uuid": "GPU-2", "temperature_c": None, "power_w": None},
]}  # fmt: skip


def _warm(number: int, celsius: int | None, watts: float | None) -> dict[str, Any]:
    """Returns a run from `number` hours ago with a GPU's reading."""
    at = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=number)
    cards = {"gpus": [{"uuid": "GPU-1", "temperature_c": celsius, "power_w": watts}]}
    return {**run_of(number, machine=cards), "started": at.isoformat(), "ended": at.isoformat()}


def test_only_gpus_that_tell_have_readings(history: History) -> None:
    history.record({**_warm(0, 1, 1), **{"hosts": run_of(0, machine=CARDS)["hosts"]}})
    found = history.readings(7, 56)
    assert list(found) == [history.named("servbadge")] == [1]
    (reading,) = found[1].pop("GPU-1")
    assert reading[1:] == (61.0, 180.5)
    assert found[1] == {}


def test_of_a_span_the_hottest_stands(history: History) -> None:
    for number, (celsius, watts) in enumerate([(40, 50.0), (90, 40.0), (41, 60.0), (None, 30.0)]):
        history.record(_warm(number, celsius, watts))
    rows = history.readings(7, 2)[1]["GPU-1"]
    assert [row[1:] for row in rows] == [(41.0, 60.0), (90.0, 50.0)]
    assert rows[0][0] < rows[1][0]
    assert [row[1] for row in history.readings(1 / 24, 9)[1]["GPU-1"]] == [40.0]


def test_what_a_guard_read_between_the_runs_is_kept_once(history: History) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).timestamp()
    hours = [
        {"t": now - hour * 3600, "uuid": "GPU-1", "hottest_c": 60.0 + hour, "mean_w": 200.0}
        for hour in (-30, 1, 2, 15 * 24)
    ]
    for number in range(2):
        run = _warm(0, 40, 50.0)
        run["hosts"]["servbadge"]["readings"] = hours
        history.record({**run, "run": f"run-{number}"})
    assert {row[1:] for row in history.readings(30, 10000)[1]["GPU-1"]} == {(40.0, 50.0), (61.0, 200.0), (62.0, 200.0)}


def test_readings_go_after_a_fortnight(history: History) -> None:
    for hours in (15 * 24, 13 * 24, 0):
        history.record(_warm(hours, 40, 50.0))
    assert len(history.readings(100, 1000)[1]["GPU-1"]) == 2


def test_readings_older_than_a_day_are_the_highest_of_each_hour(history: History) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).replace(minute=30)
    for minutes in range(48 * 60, -1, -10):
        at = (now - datetime.timedelta(minutes=minutes)).isoformat()
        made = _warm(0, 40 + minutes % 60 // 10, 50.0 + minutes % 60)
        history.record({**made, "started": at, "ended": at, "run": f"at-{minutes}"})
    rows = history.readings(30, 100_000)[1]["GPU-1"]
    hours: dict[int, list[Any]] = {}
    for row in rows:
        hours.setdefault(int(row[0] // 3600), []).append(row)
    old = [found for hour, found in hours.items() if (hour + 1) * 3600 <= now.timestamp() - 86400]
    assert {len(found) for found in old} == {1}
    assert {found[0][1:] for found in old[1:]} == {(45.0, 100.0)}
    assert sum(len(found) for found in hours.values()) - len(old) > 24 * 6
    assert len(rows) < 24 * 6 + 24 + 12


def test_a_run_by_a_wrong_clock_does_not_stop_the_thinning(history: History) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).replace(minute=0, second=0)
    days = (2000, *(-2 + minutes / 1440 for minutes in range(10, 60, 10)), 0)
    for number, day in enumerate(days):
        at = (now + datetime.timedelta(days=day)).isoformat()
        history.record({**_warm(0, 40, 50.0), "started": at, "ended": at, "run": f"at-{number}"})
    old = [row for row in history._database.execute("SELECT at FROM reading") if row[0] < now.timestamp() - 86400]
    assert len(old) == 1


def test_older_reports_are_the_last_of_each_day_and_host(history: History) -> None:
    midnight = datetime.datetime.now(datetime.timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    runs = [(day, hour, ("a", "b") if hour < 12 else ("a",)) for day in (-3, -2) for hour in (1, 6, 18, 23)]
    for number, (day, hour, hosts) in enumerate((*runs, (0, 0, ("a",)))):
        at = midnight + datetime.timedelta(days=day, hours=hour)
        one = run_of(number)["hosts"]["servbadge"]
        made = {name: {**one, "address": name} for name in hosts}
        whole = {**run_of(number), "command": "fleet.report", "started": at.isoformat(), "ended": at.isoformat()}
        history.record({**whole, "hosts": made})
    assert {run.id for run in history.runs()} == {"r1", "r3", "r5", "r7", "r8"}
    previous = history.previous("fleet.report", history.named("b"))
    assert previous is not None
    assert previous["run"] == "r5"


def test_findings_that_passed_go_after_a_month(history: History) -> None:
    passed = {**FINDING, "verdict": "pass"}
    info = {**FINDING, "verdict": "info"}
    for day in (0, 20, 40):
        history.record(run_of(24 * day, findings=[passed, info, {**FINDING, "seen": f"{day} GiB"}]))
    found = {run: [one["verdict"] for one in history.run(run)["hosts"]["servbadge"]["findings"]]
             for run in ("r0", "r480", "r960")}  # fmt: skip
    assert found == {"r0": ["fail"], "r480": ["pass", "info", "fail"], "r960": ["pass", "info", "fail"]}


def test_findings_that_passed_stay_in_the_newest_run_of_a_host(history: History) -> None:
    history.record(run_of(0, findings=[{**FINDING, "verdict": "pass"}]))
    other = run_of(24 * 60)
    other["hosts"] = {"other": {**other["hosts"]["servbadge"], "address": "192.0.2.11"}}
    history.record(other)
    assert len(history.run("r0")["hosts"]["servbadge"]["findings"]) == 1


def test_equal_values_of_many_machines_are_stored_once(history: History) -> None:
    whole = run_of(0)
    one = whole["hosts"].pop("servbadge")
    whole["hosts"] = {f"gpu{number}": {**one, "address": f"gpu{number}", "kept": {"system.cpu": "EPYC",
        "system.board": {"serial": str(number)}}} for number in range(50)}  # fmt: skip
    history.record(whole)
    assert history._database.execute("SELECT count(*) FROM value").fetchone()[0] == 51
    assert history._database.execute("SELECT count(*) FROM fact").fetchone()[0] == 100


def test_values_are_those_that_last_finds(history: History) -> None:
    for number, kernel in enumerate(("6.1", "6.1", "6.8", "6.1", "6.9")):
        history.record(run_of(10 * number, {"system.running_kernel": kernel, "system.cpu": "one"}))
    machine = history.named("servbadge")
    names = ("system.running_kernel", "system.cpu", "never")
    for hours in (None, -5, 0, 5, 15, 20, 25, 35, 99):
        at = None if hours is None else NOON + datetime.timedelta(hours=hours)
        expected = {name: seen.value for name in names if (seen := history.last(machine, name, at))}
        assert history.values(machine, names, at) == expected


def test_reports_go_after_a_fortnight_but_for_the_newest_of_each_host(history: History) -> None:
    def report(number: int, days: int, host: str) -> dict[str, Any]:
        at = (datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=days)).isoformat()
        made = run_of(number, findings=[FINDING, {**FINDING, "verdict": "pass"}, {**FINDING, "verdict": "info"}])
        hosts = {host: made["hosts"]["servbadge"]}
        return {**made, "command": "fleet.report", "started": at, "ended": at, "hosts": hosts}

    for number, days, host in ((1, 40, "gone"), (2, 30, "servbadge"), (3, 20, "servbadge"), (5, 1, "servbadge")):
        history.record(report(number, days, host))
    history.record({**report(4, 25, "servbadge"), "command": "verify"})
    assert {run.id for run in history.runs()} == {"r1", "r4", "r5"}
    assert history.run("r5")["hosts"]["servbadge"]["findings"] == [FINDING]
    assert len(history.run("r4")["hosts"]["servbadge"]["findings"]) == 3


def test_the_run_before_of_a_command(history: History) -> None:
    assert history.previous("verify", history.named("servbadge", "192.0.2.10")) is None
    history.record(run_of(0, findings=[FINDING], status="failed"))
    history.record({**run_of(1), "command": "plan"})
    history.record({**run_of(2), "exit_code": 130})
    found = history.previous("verify", history.named("servbadge", "192.0.2.10"))
    assert found is not None
    assert (found["run"], found["status"], found["findings"]) == ("r0", "failed", [FINDING])
    assert found["ended"] == NOON + datetime.timedelta(seconds=2)
    assert history.previous("verify", history.named("servbadge", "192.0.2.11")) is None


def test_another_programs_file_is_left(path: Path) -> None:
    path.parent.mkdir()
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE places (x)")
    database.close()
    with pytest.raises(HistoryError, match="another program's database"):
        History.open(path)


def test_a_place_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "history.sqlite", tmp_path):
        with pytest.raises(HistoryError, match="cannot be"):
            History.open(path)


# --- concurrent access

WRITER = """
import sys
from pathlib import Path
from tests.cli.run_command import run_command
from tests.history.test_history import run_of
from rigwright.history import History
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    with History.open(Path(sys.argv[1])) as history:
        told = run_of(number, {"system.cpu": f"cpu {number}"})
        history.record(told)
"""


def test_two_processes_record_side_by_side(path: Path) -> None:
    """Both processes start without a file."""
    spans = (("0", "40"), ("100", "140"))
    both = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), *span]) for span in spans]
    assert [process.wait(60) for process in both] == [0, 0]
    with History.open(path, write=False) as history:
        assert len(history.runs()) == 80
        assert history._database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_one_that_holds_it_is_waited_for_and_then_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    History.open(path).close()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, other.rollback)
    timer.start()
    with History.open(path) as history:
        history.record(run_of(0))
    timer.join()
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(sqlite, "BUSY_S", 0.2)
    with History.open(path) as history, pytest.raises(HistoryError, match="another process has held it"):
        history.record(run_of(1))
    with History.open(path, write=False) as history:
        assert [run.id for run in history.runs()] == ["r0"]  # a reader does not wait for a lock
    other.close()


def test_a_run_is_recorded_whole_or_not_at_all(history: History) -> None:
    told = copy.deepcopy(run_of(0, {"system.cpu": "x"}, changes=[CHANGE]))
    told["hosts"]["other"] = {"status": "ok"}
    with pytest.raises(KeyError):
        history.record(told)
    assert history.runs() == []
    assert history.last(history.named("servbadge"), "system.cpu") is None


# --- runs of commands


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """Returns an inventory of two hosts with closed ports; one has a password."""
    hosts = (
        "gpu:\n  vars: {ansible_host: 127.0.0.1, ansible_port: 9}\n"
        "  hosts: {one: , two: {ansible_become_password: hunter2}}\n"
    )
    (tmp_path / "hosts.yml").write_text(hosts)
    return tmp_path / "hosts.yml"


def test_a_run_records_itself(closed: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(path))
    assert run_command("facts", host="all", inventory=str(closed)) == 3
    assert run_command("verify", host="all", inventory=str(closed), playbook=str(play(closed))) == 3
    assert run_command("facts", host="nobody", inventory=str(closed)) == 1  # the command connected to no host
    with History.open(path, write=False) as history:
        second, first = history.runs()
        assert (first.command, second.command, second.exit_code) == ("facts", "verify", 3)
        assert (second.inventory, second.playbook, first.playbook) == (str(closed), str(play(closed)), "")
        assert [(one.name, one.address, one.status) for one in second.hosts] == [
            ("one", "127.0.0.1", "unreachable"),
            ("two", "127.0.0.1", "unreachable"),
        ]
        assert "refused" in history.run("last")["hosts"]["two"]["error"]["found"]
    assert b"hunter2" not in b"".join(one.read_bytes() for one in path.parent.iterdir())


def play(beside: Path) -> Path:
    """Returns a playbook of one check."""
    path = beside.with_name("play.yml")
    path.write_text("- name: A play\n  hosts: all\n  checks:\n    - driver.versions_equal: {}\n")
    return path


def test_a_history_that_cannot_be_used_costs_the_run_nothing(
    closed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code, the document and the text of the run do not change; a line on stderr reports the error."""
    damaged = tmp_path / "history.sqlite"
    damaged.write_bytes(b"no database " * 100)
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(damaged))
    assert run_command("facts", host="one", inventory=str(closed), json="-") == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["hosts"]["one"]["status"] == "unreachable"
    assert f"warn the history has not recorded this run: {damaged}: is damaged" in err
    assert damaged.read_bytes() == b"no database " * 100
