"""Writes a run's JSON document as rows, and deletes old rows, in the caller's transaction."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import sqlite3
from collections.abc import Mapping
from typing import Any

from rigwright.core import numbers
from rigwright.core.machine_identity import MachineIdentity
from rigwright.history import machines, samples
from rigwright.history.diff import ATTEMPT
from rigwright.history.machines import RecordedMachines

KEPT_DAYS = 400
"""Runs and old values of facts are kept for this number of days; RIGWRIGHT_HISTORY_DAYS overrides it."""

BY_THE_CLOCK = "fleet.report"
"""This command may run every few minutes, so its passed findings are not stored, and its runs are deleted earlier.

Its runs are kept as long as the readings.
"""

LARGEST = 1 << 16
"""Facts with more characters of JSON than this are not stored, because a host could send any amount."""


def kept_days() -> float:
    """The value of RIGWRIGHT_HISTORY_DAYS, or KEPT_DAYS if it is not set. Raises UsageError for an invalid value."""
    given = os.environ.get("RIGWRIGHT_HISTORY_DAYS", "")
    if not given:
        return KEPT_DAYS
    return numbers.whole("RIGWRIGHT_HISTORY_DAYS", given, 1, "days")


def epoch(text: object, otherwise: float) -> float:
    """Converts an ISO time to seconds since 1970; returns `otherwise` for an empty text or another type."""
    return datetime.datetime.fromisoformat(text).timestamp() if isinstance(text, str) and text else otherwise


def run(database: sqlite3.Connection, document: Mapping[str, Any], started: float, ended: float) -> None:
    """Writes a run and the results of its hosts. Replaces a run with the same id."""
    id = str(document["run"])
    database.execute("DELETE FROM run WHERE id = ?", (id,))
    playbook, inventory = (_text(document.get(key)) for key in ("playbook", "inventory"))
    _insert(
        database, "run", id, document["command"], started, ended, playbook, inventory, document["exit_code"],
        _json(document.get("error")),
    )  # fmt: skip
    ids = _machines(database, document["hosts"], ended)
    for name, report in document["hosts"].items():
        host = ids[name]
        if document["command"] == BY_THE_CLOCK:
            report = {**report, "findings": [finding for finding in report["findings"] if finding["verdict"] != "pass"]}
        _outcome(database, id, host, name, report)
        tried = {ATTEMPT: report["try"]} if report.get("try") else {}
        _facts(database, id, host, {**report["kept"], **tried}, ended)
        samples.record(database, host, report.get("machine"), ended)
        samples.record_hours(database, host, report.get("readings") or (), ended)
        if report.get("baseline"):
            database.execute("INSERT OR REPLACE INTO baseline VALUES (?, ?)", (host, json.dumps(report["baseline"])))


def _machines(database: sqlite3.Connection, reports: Mapping[str, Any], at: float) -> dict[str, int]:
    """By host name the id of its machine. No two hosts of a run are one machine: those with the same identity keep a past each."""
    identities = {name: MachineIdentity.of(report.get("identity")) for name, report in reports.items()}
    doubtful = machines.shared(identities)
    known = machines.read(database)
    ids: dict[str, int] = {}
    for name in sorted(reports, key=lambda name: not identities[name]):  # identified hosts take their machines first
        report, identity, address = reports[name], identities[name], _address(name, reports[name])
        free = RecordedMachines(tuple(machine for machine in known.machines if machine.id not in ids.values()))
        simulated = bool(report["simulated"])
        match = free.match(_text(name), address, identity, simulated, own_only=name in doubtful)
        told = any(finding["check"] == machines.CHECK for finding in report["findings"])
        ids[name] = machines.record(database, match, _text(name), address, identity, simulated, at, told)
    return ids


def _address(name: str, report: Mapping[str, Any]) -> str:
    return _text(report.get("address") or name)


def _outcome(database: sqlite3.Connection, run: str, host: int, name: str, report: Mapping[str, Any]) -> None:
    steps = report["steps"]
    _insert(
        database, "outcome", run, host, _text(name), _address(name, report), report["status"], _json(report["error"]), _text(report["simulated"]), bool(report["rebooted"]),
        len(steps), report["seconds"],
    )  # fmt: skip
    for number, step in enumerate(steps):
        if step["status"] not in ("ok", "skipped"):
            _insert(database, "step", run, host, number, *(_text(step[key]) for key in ("name", "status", "reason")))
    for number, change in enumerate(report["changes"]):
        words = [_text(change[key]) for key in ("step", "action", "subject", "before", "after")]
        rest = (bool(change["disruptive"]), _text(change["leads_to"]), bool(change["done"]))
        _insert(database, "change", run, host, number, *words, *rest)
    for number, finding in enumerate(report["findings"]):
        text = json.dumps(finding, sort_keys=True)
        saying = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
        database.execute("INSERT OR IGNORE INTO saying VALUES (?, ?, ?)", (saying, finding["verdict"], text))
        _insert(database, "finding", run, host, number, saying)


def _facts(database: sqlite3.Connection, run: str, host: int, facts: Mapping[str, Any], seen: float) -> None:
    """Updates `last_seen` of each unchanged value, and inserts a row for each new value."""
    for name, value in facts.items():
        text = json.dumps(value, sort_keys=True)
        if len(text) > LARGEST:
            continue
        last = database.execute(
            "SELECT id, value FROM fact WHERE host = ? AND name = ? ORDER BY id DESC LIMIT 1", (host, name)
        ).fetchone()
        if last and last[1] == text:
            database.execute("UPDATE fact SET last_seen = max(last_seen, ?) WHERE id = ?", (seen, last[0]))
        else:
            _insert(database, "fact", None, host, name, text, seen, seen, run)


def prune(database: sqlite3.Connection, before: float, reports_before: float) -> None:
    """Deletes old runs, reports and values of facts, and findings that no run refers to any more.

    Deletes runs that began before `before`, except the newest run of each host. Deletes runs of BY_THE_CLOCK that began
    before `reports_before`, except the newest such run of each host. Deletes values of facts that were last seen before
    `before`, except the last value of each fact.
    """
    gone = 0
    for command, time in (("%", before), (BY_THE_CLOCK, reports_before)):
        database.execute(
            "DELETE FROM run WHERE command LIKE ? AND started < ? AND id NOT IN (SELECT ifnull((SELECT run.id FROM outcome"
            " JOIN run ON run.id = run WHERE outcome.host = host.id AND command LIKE ? ORDER BY started DESC LIMIT 1), '') FROM host)",
            (command, time, command),
        )
        gone += int(database.execute("SELECT changes()").fetchone()[0])
    if gone:
        database.execute("DELETE FROM saying WHERE id NOT IN (SELECT saying FROM finding)")
    database.execute(
        "DELETE FROM fact WHERE last_seen < ? AND id NOT IN (SELECT max(id) FROM fact GROUP BY host, name)", (before,)
    )


def _insert(database: sqlite3.Connection, table: str, *values: object) -> None:
    database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value)


def _text(value: object) -> str:
    """The value as text for SQLite. Bytes of a path that are not UTF-8 become question marks."""
    return str("" if value is None else value).encode("utf-8", "replace").decode()
