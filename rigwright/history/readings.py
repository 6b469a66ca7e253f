"""How warm every GPU was and what it drew, run by run; for a fortnight. Inside a transaction of the caller's."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

KEPT_DAYS = 14
"""How long readings are kept: they are for a plot of the last days, and a monitoring system's to keep for longer."""

TABLE = """CREATE TABLE reading (at REAL NOT NULL, host INTEGER NOT NULL REFERENCES host (id), gpu TEXT NOT NULL,
           temperature_c REAL, power_w REAL, PRIMARY KEY (at, host, gpu)) WITHOUT ROWID"""

Reading = tuple[float, float | None, float | None]
"""Seconds since 1970, degrees Celsius and watts; None where the GPU does not tell."""


def record(database: sqlite3.Connection, host: int, machine: Mapping[str, Any] | None, at: float) -> None:
    """What the cards of a machine (its key in the document) told at a time is kept; of those that tell neither, nothing."""
    for one in (machine or {}).get("gpus") or ():
        told = one.get("temperature_c"), one.get("power_w")
        if one.get("uuid") and told != (None, None):
            row = (at, host, str(one["uuid"]), *told)
            database.execute("INSERT OR REPLACE INTO reading VALUES (?, ?, ?, ?, ?)", row)


def prune(database: sqlite3.Connection, now: float) -> None:
    """Readings older than KEPT_DAYS are gone."""
    database.execute("DELETE FROM reading WHERE at < ?", (now - KEPT_DAYS * 86400,))


def since(
    database: sqlite3.Connection, begin: float, now: float, spans: int
) -> dict[tuple[str, str], dict[str, list[Reading]]]:
    """By (name, address) of the host and UUID of the GPU its readings since a time, oldest first, at most one or two more than
    `spans`: the time from the first of all to now is cut into so many, and of a span's the hottest stands, and the most drawn."""
    first = database.execute("SELECT min(at) FROM reading WHERE at >= ?", (begin,)).fetchone()[0]
    if first is None:
        return {}
    rows = database.execute(
        "SELECT name, address, gpu, max(at) AS latest, max(temperature_c), max(power_w) FROM reading"
        " JOIN host ON host.id = reading.host WHERE at >= ?"
        " GROUP BY host.id, gpu, CAST((at - ?) / ? AS INTEGER) ORDER BY host.id, gpu, latest",
        (first, first, max((now - first) / spans, 1.0)),
    )
    found: dict[tuple[str, str], dict[str, list[Reading]]] = {}
    for name, address, gpu, at, temperature, power in rows:
        found.setdefault((name, address), {}).setdefault(gpu, []).append((at, temperature, power))
    return found
