"""Writes a run's JSON document as rows, in the caller's transaction."""

from __future__ import annotations

import datetime
import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from rigwright.core.machine_identity import MachineIdentity
from rigwright.history import gpu_readings, machines
from rigwright.history.differences import ATTEMPT
from rigwright.history.retention import BY_THE_CLOCK

NO_PROBLEM = ("pass", "info")
"""Verdicts of such findings."""

LARGEST = 1 << 16
"""Facts with more characters of JSON than this are not stored, because a host could send any amount."""


def epoch(text: object, otherwise: float) -> float:
    """Converts an ISO time to seconds since 1970; returns `otherwise` for an empty text or another type."""
    return datetime.datetime.fromisoformat(text).timestamp() if isinstance(text, str) and text else otherwise


def write_run(database: sqlite3.Connection, document: Mapping[str, Any], started: float, ended: float) -> None:
    """Writes a run and the results of its hosts. Replaces a run with the same id."""
    id = str(document["run"])
    database.execute("DELETE FROM run WHERE id = ?", (id,))
    playbook, inventory = (_text(document.get(key)) for key in ("playbook", "inventory"))
    _insert(
        database, "run", id, document["command"], started, ended, playbook, inventory, document["exit_code"],
        _json(document.get("error")), document["command"] != BY_THE_CLOCK,
    )  # fmt: skip
    ids = _machines(database, document["hosts"], ended)
    known = _last_values(database, ids.values())
    said: set[int] = set()
    for name, report in document["hosts"].items():
        host = ids[name]
        if document["command"] == BY_THE_CLOCK:
            report = {
                **report,
                "findings": [finding for finding in report["findings"] if finding["verdict"] not in NO_PROBLEM],
            }
        _outcome(database, id, host, name, report, said)
        tried = {ATTEMPT: report["try"]} if report.get("try") else {}
        _facts(database, id, host, {**report["kept"], **tried}, ended, known)
        gpu_readings.record_hours(database, host, report.get("readings") or (), ended)
        if report.get("baseline"):
            database.execute("INSERT OR REPLACE INTO baseline VALUES (?, ?)", (host, json.dumps(report["baseline"])))
    gpu_readings.record(
        database, ((ids[name], report.get("machine")) for name, report in document["hosts"].items()), ended
    )


def _machines(database: sqlite3.Connection, reports: Mapping[str, Any], at: float) -> dict[str, int]:
    """By host name the id of its machine. Two hosts of a run are never one machine, also with the same identity."""
    identities = {name: MachineIdentity.of(report.get("identity")) for name, report in reports.items()}
    doubtful = machines.names_sharing(identities)
    known = machines.read(database)
    ids: dict[str, int] = {}
    taken: set[int] = set()
    for name in sorted(reports, key=lambda name: not identities[name]):  # identified hosts take their machines first
        report, identity = reports[name], identities[name]
        address = _text(report.get("address") or name)
        simulated = bool(report["simulated"])
        match = known.match(_text(name), address, identity, simulated, own_only=name in doubtful, taken=taken)
        told = any(finding["check"] == machines.CHECK for finding in report["findings"])
        ids[name] = machines.record(database, match, _text(name), address, identity, simulated, at, told)
        taken.add(ids[name])
    return ids


def _outcome(
    database: sqlite3.Connection, run: str, host: int, name: str, report: Mapping[str, Any], said: set[int]
) -> None:
    """Inserts the result of a host. `said`: the ids of findings' texts that this run has inserted, which are added."""
    steps = report["steps"]
    _insert(
        database, "outcome", run, host, _text(name), _text(report.get("address") or name), report["status"],
        _json(report["error"]),
        _text(report["simulated"]), bool(report["rebooted"]),
        len(steps), report["seconds"],
    )  # fmt: skip
    for number, step in enumerate(steps):
        if step["status"] not in ("ok", "skipped"):
            _insert(database, "step", run, host, number, *(_text(step[key]) for key in ("name", "status", "reason")))
    for number, change in enumerate(report["changes"]):
        words = [_text(change[key]) for key in ("step", "action", "subject", "before", "after")]
        rest = (bool(change["disruptive"]), _text(change["leads_to"]), bool(change["done"]))
        _insert(database, "change", run, host, number, *words, *rest)
    texts = [(finding["verdict"], _sorted(finding)) for finding in report["findings"]]
    sayings = [(_hash(text), verdict, text) for verdict, text in texts]
    database.executemany(
        "INSERT OR IGNORE INTO saying VALUES (?, ?, ?)", [row for row in sayings if row[0] not in said]
    )
    said.update(row[0] for row in sayings)
    database.executemany(
        "INSERT INTO finding VALUES (?, ?, ?, ?)", [(run, host, number, row[0]) for number, row in enumerate(sayings)]
    )


_sorted = json.JSONEncoder(sort_keys=True).encode
"""The JSON text of a value; `json.dumps` would make an encoder for each."""


def _hash(text: str) -> int:
    """The id of a text that is stored once."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def _last_values(database: sqlite3.Connection, hosts: Iterable[int]) -> dict[tuple[int, str], tuple[int, int]]:
    """By host and name of a fact the id of its last row and of the value there."""
    rows = database.execute(
        "SELECT host, name, max(id), value FROM seen WHERE host IN (SELECT value FROM json_each(?))"
        " GROUP BY host, name",
        (json.dumps(sorted(hosts)),),
    )
    return {(host, name): (id, value) for host, name, id, value in rows}


def _facts(
    database: sqlite3.Connection, run: str, host: int, facts: Mapping[str, Any], at: float,
    known: Mapping[tuple[int, str], tuple[int, int]],
) -> None:  # fmt: skip
    """Updates `last_seen` of each unchanged value, and inserts a row for each new value. `known`: the last values."""
    same, new = [], []
    for name, value in facts.items():
        text = _sorted(value)
        if len(text) > LARGEST:
            continue
        id, last = known.get((host, name), (0, None))
        if last == (value_id := _hash(text)):
            same.append((at, id))
        else:
            new.append((value_id, text, name))
    database.executemany("UPDATE seen SET last_seen = max(last_seen, ?) WHERE id = ?", same)
    database.executemany("INSERT OR IGNORE INTO value VALUES (?, ?)", [(id, text) for id, text, _ in new])
    database.executemany(
        "INSERT INTO seen VALUES (NULL, ?, ?, ?, ?, ?, ?)", [(host, name, id, at, at, run) for id, _, name in new]
    )


def _insert(database: sqlite3.Connection, table: str, *values: object) -> None:
    database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value)


def _text(value: object) -> str:
    """The value as text for SQLite. Bytes of a path that are not UTF-8 become question marks."""
    return str("" if value is None else value).encode("utf-8", "replace").decode()
