"""Differences of a host over time. Items of a list (GPUs, DIMMs) are matched by identifier, not by position."""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

ATTEMPT = "try"
"""The name of what a run of `try` learned, the key `try` of a host; it is no state of the host."""

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


def differences(database: sqlite3.Connection, host: int, begin: float) -> list[Changed]:
    """All differences of a host since `begin` (seconds since 1970), oldest first."""
    return sorted([*_facts(database, host, begin), *run_changes(database, host, begin)], key=lambda change: change.at)


def _facts(database: sqlite3.Connection, host: int, begin: float) -> Iterator[Changed]:
    rows = database.execute(
        "SELECT now.name, was.value, now.value, now.first_seen, now.run FROM fact AS now JOIN fact AS was ON was.id ="
        " (SELECT max(id) FROM seen WHERE host = now.host AND name = now.name AND id < now.id)"
        " WHERE now.host = ? AND now.first_seen >= ? AND now.name NOT IN (?, ?, ?, ?, ?) ORDER BY now.id",
        (host, begin, ATTEMPT, *MEASURED),
    )
    for name, before_json, now, at, run in rows:
        for path, before, after in compare(json.loads(before_json), json.loads(now)):
            joined = path if path.startswith("[") or not path else f".{path}"
            yield Changed(utc(at), "fact", name + joined, before, after, run)


def run_changes(database: sqlite3.Connection, host: int, begin: float) -> list[Changed]:
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


IDENTIFIERS = ("uuid", "serial", "bus_id", "locator", "name")
"""The keys that identify an item of a list, the most reliable first."""


def leaves(value: Any, above: str = "") -> dict[str, str]:
    """The leaves of a value as texts, by path such as `[GPU-531aad71].power_limit_w`. A plain value has the path ""."""
    if isinstance(value, Mapping):
        texts: dict[str, str] = {}
        for key, inner in value.items():
            texts.update(leaves(inner, f"{above}.{key}" if above else str(key)))
        return texts
    if isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        texts = {}
        for place, item in zip(_places(value), value, strict=True):
            texts.update(leaves(item, f"{above}[{place}]"))
        return texts
    return {above: _text(value)}


def _places(items: list[Any]) -> list[str]:
    """The name of each item: its first identifier that all items have and that is unique, else its index."""
    for key in IDENTIFIERS:
        names = [str(item.get(key) or "") if isinstance(item, Mapping) else "" for item in items]
        if all(names) and len(set(names)) == len(names):
            return names
    return [str(number) for number in range(len(items))]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def compare(before: Any, after: Any) -> list[tuple[str, str, str]]:
    """(path, text before, text after) of every leaf that differs, in the order of the later value.

    A missing leaf has the text "". A list item that was added or removed is a single entry with the path of the item.
    """
    old, new = leaves(before), leaves(after)
    changes: dict[str, tuple[str, str]] = {}
    for path in dict.fromkeys([*new, *old]):
        if old.get(path, "") == new.get(path, ""):
            continue
        item = path[: path.rfind("]") + 1]
        gone, came = (
            item and not any(inner == item or inner.startswith(f"{item}.") for inner in side) for side in (new, old)
        )
        if gone or came:
            changes[item] = ("there", "gone") if gone else ("", "new")
        else:
            changes[path] = (old.get(path, ""), new.get(path, ""))
    return [(path, *words) for path, words in changes.items()]
