"""Temperature and power of GPUs in every run and every hour of a guard, in the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rigwright.history.retention import READINGS_DAYS

TABLES = (
    "CREATE TABLE gpu (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE)",
    """CREATE TABLE reading (at REAL NOT NULL, host INTEGER NOT NULL REFERENCES host (id), gpu INTEGER NOT NULL REFERENCES gpu (id),
       temperature_c REAL, power_w REAL, PRIMARY KEY (at, host, gpu)) WITHOUT ROWID""",
    "CREATE TABLE thinned (until REAL NOT NULL)",
)
"""`thinned` has at most one row: the time before which readings are those of hours."""

Reading = tuple[float, float | None, float | None]
"""Time (seconds since 1970), temperature (degrees Celsius), power (watts); None if the GPU does not report a value."""


def record(database: sqlite3.Connection, machines: Iterable[tuple[int, Mapping[str, Any] | None]], at: float) -> None:
    """Records the readings of the GPUs of hosts: pairs of a host's id and the key `machine` of the JSON document."""
    rows = [
        (at, host, str(gpu["uuid"]), *values)
        for host, machine in machines
        for gpu in (machine or {}).get("gpus") or ()
        if gpu.get("uuid") and (values := (gpu.get("temperature_c"), gpu.get("power_w"))) != (None, None)
    ]
    _insert(database, rows)


def record_hours(database: sqlite3.Connection, host: int, readings: Iterable[Mapping[str, Any]], now: float) -> None:
    """Records what a guard read on the host: `t`, `uuid`, `hottest_c`, `mean_w` of each hour and GPU. An hour that is
    recorded stays one; those after `now`, by a host's clock that is wrong, and those older than READINGS_DAYS are left
    out."""
    within = [hour for hour in readings if now - READINGS_DAYS * 86400 <= hour["t"] <= now]
    _insert(database, [(hour["t"], host, str(hour["uuid"]), hour["hottest_c"], hour["mean_w"]) for hour in within])


def _insert(database: sqlite3.Connection, rows: Sequence[tuple[float, int, str, Any, Any]]) -> None:
    database.executemany("INSERT OR IGNORE INTO gpu (uuid) VALUES (?)", {(row[2],) for row in rows})
    database.executemany(
        "INSERT OR REPLACE INTO reading SELECT ?, ?, id, ?, ? FROM gpu WHERE uuid = ?",
        [(at, host, temperature, power, uuid) for at, host, uuid, temperature, power in rows],
    )


def since(database: sqlite3.Connection, begin: float, now: float, spans: int) -> dict[int, dict[str, list[Reading]]]:
    """The readings since `begin`, oldest first, by the id of the machine and UUID of the GPU.

    The time from the first reading to `now` is divided into `spans` intervals of at least 1 s. Each interval with
    readings gives one reading with the maximum temperature and the maximum power. A GPU gets at most one or two
    readings more than `spans`.
    """
    first = database.execute("SELECT min(at) FROM reading WHERE at >= ?", (begin,)).fetchone()[0]
    if first is None:
        return {}
    rows = database.execute(
        "SELECT host, uuid, latest, temperature_c, power_w FROM (SELECT host, gpu, max(at) AS latest, "
        "max(temperature_c) AS temperature_c,"
        " max(power_w) AS power_w FROM reading WHERE at >= ? GROUP BY host, gpu, CAST((at - ?) / ? AS INTEGER))"
        " JOIN gpu ON gpu.id = gpu ORDER BY host, uuid, latest",
        (first, first, max((now - first) / spans, 1.0)),
    )
    readings: dict[int, dict[str, list[Reading]]] = {}
    for host, gpu, at, temperature, power in rows:
        readings.setdefault(host, {}).setdefault(gpu, []).append((at, temperature, power))
    return readings
