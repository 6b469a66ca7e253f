"""Differences of a host over time: changed facts, and changes that runs made. Uses the caller's database connection."""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Iterator

from msgspec import Struct

from rigwright.history.json_diff import compared

ATTEMPT = "try"
"""The name under which what a run of `try` learned is kept beside the facts: the key `try` of a host. It is no state of
the host."""

FIGURES = "stress.measured"
"""The name under which what a stress measured of each GPU is kept."""

MEASURED = (FIGURES, "training_smoke.trained", "nodes.links", "nccl.tested")
"""The names under which measurements are kept: of GPUs, of trainings, of links between nodes, of pairs of GPUs. No two
measurements have the same figures, so they are not listed one by one: a reader compares them by what counts."""


class Changed(Struct, frozen=True):
    """One difference of a host: a value inside a fact (`kind` fact) or a change that a run made (`kind` change)."""

    at: datetime.datetime
    kind: str
    subject: str
    before: str
    after: str
    run: str


def since(database: sqlite3.Connection, host: int, begin: float) -> list[Changed]:
    """All differences of a host since `begin` (seconds since 1970), oldest first."""
    return sorted([*_facts(database, host, begin), *made(database, host, begin)], key=lambda change: change.at)


def _facts(database: sqlite3.Connection, host: int, begin: float) -> Iterator[Changed]:
    rows = database.execute(
        "SELECT now.name, was.value, now.value, now.first_seen, now.run FROM fact AS now JOIN fact AS was ON was.id ="
        " (SELECT max(id) FROM seen WHERE host = now.host AND name = now.name AND id < now.id)"
        " WHERE now.host = ? AND now.first_seen >= ? AND now.name NOT IN (?, ?, ?, ?, ?) ORDER BY now.id",
        (host, begin, ATTEMPT, *MEASURED),
    )
    for name, before_json, now, at, run in rows:
        for path, before, after in compared(json.loads(before_json), json.loads(now)):
            joined = path if path.startswith("[") or not path else f".{path}"
            yield Changed(utc(at), "fact", name + joined, before, after, run)


def made(database: sqlite3.Connection, host: int, begin: float) -> list[Changed]:
    """The changes that runs made on a host since `begin`, oldest first."""
    rows = database.execute(
        "SELECT ended, subject, before, after, run FROM run CROSS JOIN change ON run = run.id"
        " WHERE host = ? AND ended >= ? AND done ORDER BY ended, position",
        (host, begin),
    )
    return [Changed(utc(at), "change", subject, before, after, run) for at, subject, before, after, run in rows]


def utc(epoch: float) -> datetime.datetime:
    """Converts seconds since 1970 to a UTC time."""
    return datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
