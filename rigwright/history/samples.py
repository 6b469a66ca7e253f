"""Temperature and power of every GPU in every run, and of every hour in which a guard ran. Uses the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

KEPT_DAYS = 14
"""Readings are kept for this number of days, which is enough for a plot. A monitoring system may keep them longer."""

TABLE = """CREATE TABLE reading (at REAL NOT NULL, host INTEGER NOT NULL REFERENCES host (id), gpu TEXT NOT NULL,
           temperature_c REAL, power_w REAL, PRIMARY KEY (at, host, gpu)) WITHOUT ROWID"""

Reading = tuple[float, float | None, float | None]
"""Time (seconds since 1970), temperature (degrees Celsius), power (watts); None if the GPU does not report a value."""


def record(database: sqlite3.Connection, host: int, machine: Mapping[str, Any] | None, at: float) -> None:
    """Records the readings of the GPUs in `machine`, a part of the JSON document. Skips GPUs without a reading."""
    for gpu in (machine or {}).get("gpus") or ():
        values = gpu.get("temperature_c"), gpu.get("power_w")
        if gpu.get("uuid") and values != (None, None):
            row = (at, host, str(gpu["uuid"]), *values)
            database.execute("INSERT OR REPLACE INTO reading VALUES (?, ?, ?, ?, ?)", row)


def record_hours(database: sqlite3.Connection, host: int, readings: Iterable[Mapping[str, Any]], now: float) -> None:
    """Records what a guard read on the host: `t`, `uuid`, `hottest_c`, `mean_w` of each hour and GPU. An hour that is recorded stays one;
    those after `now`, by a host's clock that is wrong, and those older than KEPT_DAYS are left out."""
    for one in readings:
        if now - KEPT_DAYS * 86400 <= one["t"] <= now:
            row = (one["t"], host, str(one["uuid"]), one["hottest_c"], one["mean_w"])
            database.execute("INSERT OR REPLACE INTO reading VALUES (?, ?, ?, ?, ?)", row)


def prune(database: sqlite3.Connection, now: float) -> None:
    """Deletes readings older than KEPT_DAYS."""
    database.execute("DELETE FROM reading WHERE at < ?", (now - KEPT_DAYS * 86400,))


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
        "SELECT host, gpu, max(at) AS latest, max(temperature_c), max(power_w) FROM reading WHERE at >= ?"
        " GROUP BY host, gpu, CAST((at - ?) / ? AS INTEGER) ORDER BY host, gpu, latest",
        (first, first, max((now - first) / spans, 1.0)),
    )
    readings: dict[int, dict[str, list[Reading]]] = {}
    for host, gpu, at, temperature, power in rows:
        readings.setdefault(host, {}).setdefault(gpu, []).append((at, temperature, power))
    return readings
