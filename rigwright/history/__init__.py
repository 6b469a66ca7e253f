"""The history of runs in one SQLite file: results, changes, findings, and the hosts' facts over time.

A machine is identified by its board serial, product UUID or machine-id (`machines`); by its name and address if it
gives none of them. So a simulated `servbadge` and a real `servbadge` are two machines.
"""

from __future__ import annotations

import datetime
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from rigwright.core.errors import HistoryError, UsageError
from rigwright.core.typed_json import typed
from rigwright.history import database as history_database, differences, gpu_readings, machines, retention, run_rows
from rigwright.history.database import HISTORY, file, set_aside
from rigwright.history.differences import Changed, utc
from rigwright.history.gpu_readings import Reading
from rigwright.history.machines import RecordedMachines

__all__ = ["Changed", "History", "HistoryError", "HostSummary", "RunSummary", "Seen", "file", "set_aside"]

T = TypeVar("T")

_SEEN = "seen WHERE name IN (SELECT value FROM json_each(?))"
_KNOWN = {
    "host": "SELECT * FROM host",
    "place": "SELECT * FROM place",
    "baseline": "SELECT * FROM baseline",
    "value": f"SELECT * FROM value WHERE id IN (SELECT value FROM {_SEEN})",
    "seen": f"SELECT * FROM {_SEEN}",
}
"""By table the rows of `History.known`."""


class Seen(Struct, frozen=True):
    """A fact's value as JSON types, the times (UTC) when it was first and last seen, and the run that first saw it."""

    value: Any
    first_seen: datetime.datetime
    last_seen: datetime.datetime
    run: str


class HostSummary(Struct, frozen=True):
    """The result of one host in a run: its status as in the JSON document, counts of changes and of failed findings."""

    name: str
    address: str
    status: str
    changes: int
    failed: int


class RunSummary(Struct, frozen=True):
    """The summary of one run. `started` is in UTC, and `seconds` is the duration."""

    id: str
    command: str
    started: datetime.datetime
    seconds: float
    playbook: str
    inventory: str
    exit_code: int
    hosts: tuple[HostSummary, ...]


class History:
    """An open history, for use in one thread. Every method raises HistoryError when the file cannot be used."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path = path
        self._database = database

    @classmethod
    def open(cls, path: Path | None = None, *, write: bool = True) -> History:
        """Opens the history in `path` (default: `file()`). Creates the file only with `write`. Raises HistoryError."""
        where = path or file()
        return cls(where, history_database.connect(where, write))

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def record(self, document: Mapping[str, Any]) -> None:
        """Records a run in place of a run with its id, and deletes old data. Raises UsageError for a wrong setting."""
        now = time.time()
        started = run_rows.epoch(document.get("started"), now)
        ended = max(started, run_rows.epoch(document.get("ended"), now))
        oldest = ended - retention.runs_days() * 86400
        with self._writing() as database:
            run_rows.write_run(database, document, started, ended)
            retention.prune_runs(database, ended, oldest)
            retention.prune_readings(database, ended)
        with HISTORY.named(self.path):
            self._database.executescript("PRAGMA incremental_vacuum(10000)")  # execute() would give back one page

    def known(self, facts: Sequence[str]) -> dict[str, list[list[Any]]]:
        """The rows of all machines and baselines, and all values of these facts, for `learn` of an empty history."""
        with HISTORY.reading(self.path):
            return {
                table: [list(row) for row in self._database.execute(rows, (json.dumps(facts),) * rows.count("?"))]
                for table, rows in _KNOWN.items()
            }

    def learn(self, known: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        """Adds the rows that `known` returned."""
        with self._writing() as database:
            for table in _KNOWN:
                for row in known.get(table, ()):
                    database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def machines(self, present: Iterable[str] = ()) -> RecordedMachines:
        """All machines, with their baselines. `present`: the names of the hosts of this run."""
        with HISTORY.reading(self.path):
            return machines.read(self._database, present)

    def named(self, host: str, address: str = "") -> int | None:
        """The id of the machine that had this name last, and has `address` if given; None for an unknown name."""
        with HISTORY.reading(self.path):
            row = self._database.execute(
                "SELECT place.host FROM place JOIN host ON host.id = place.host WHERE place.name = ?"
                " AND (? = '' OR host.address = ? AND place.address = host.address)"
                " ORDER BY host.name = place.name DESC, last_seen DESC, place.host DESC LIMIT 1",
                (host, address, address),
            ).fetchone()
        return int(row[0]) if row else None

    def last(self, machine: int | None, name: str, at: datetime.datetime | None = None) -> Seen | None:
        """The last value of a fact of a machine; None when no run has seen it.

        With `at` it is the value at that time; if no run had seen the fact by then, it is the first value.
        """
        until = at.timestamp() if at else float("inf")
        with HISTORY.reading(self.path):
            row = self._database.execute(
                "SELECT value, first_seen, last_seen, run FROM fact WHERE host = ? AND name = ?"
                " ORDER BY first_seen > ?, CASE WHEN first_seen > ? THEN first_seen ELSE -min(last_seen, ?) END, "
                "id DESC LIMIT 1",
                (machine, name, until, until, until),
            ).fetchone()
            return Seen(json.loads(row[0]), utc(row[1]), utc(row[2]), _text(row[3])) if row else None

    def values(self, machine: int | None, names: Iterable[str], at: datetime.datetime | None = None) -> dict[str, Any]:
        """The values of facts of a machine as `last` finds them, by name; without those that no run has seen."""
        until = at.timestamp() if at else float("inf")
        wanted = set(names)
        chosen: dict[str, tuple[tuple[bool, float, int], int]] = {}
        with HISTORY.reading(self.path):
            for id, name, value, first, last in self._database.execute(
                "SELECT id, name, value, first_seen, last_seen FROM seen WHERE host = ?", (machine,)
            ):
                if name in wanted:
                    rank = (first > until, first if first > until else -min(last, until), -id)
                    if name not in chosen or rank < chosen[name][0]:
                        chosen[name] = rank, value
            ids = json.dumps(sorted({value for _, value in chosen.values()}))
            texts = dict(self._database.execute("SELECT id, text FROM value WHERE id IN "
                                                "(SELECT value FROM json_each(?))", (ids,)))  # fmt: skip
            return {name: json.loads(texts[value]) for name, (_, value) in chosen.items()}

    def every(self, machine: int | None, name: str) -> list[Seen]:
        """All recorded values of a fact of a machine, oldest first."""
        with HISTORY.reading(self.path):
            rows = self._database.execute(
                "SELECT value, first_seen, last_seen, run FROM fact WHERE host = ? AND name = ? ORDER BY id",
                (machine, name),
            ).fetchall()
            return [Seen(json.loads(row[0]), utc(row[1]), utc(row[2]), _text(row[3])) for row in rows]

    def figures(self, machine: int | None, name: str, kind: type[T]) -> Iterator[tuple[str, str, T]]:
        """The figures in all recorded values of a fact, oldest first, each with its time (ISO 8601) and run. A value of
        another form, which another version wrote, is left out."""
        for value in self.every(machine, name):
            try:
                figures = typed(value.value, tuple[kind, ...])  # type: ignore[valid-type]
            except ValueError:
                continue
            yield from ((value.last_seen.isoformat(), value.run, each) for each in figures)

    def everywhere(self, name: str) -> dict[int, tuple[str, Seen]]:
        """By machine, the one last seen at the end: its name and the last value of a fact."""
        with HISTORY.reading(self.path):
            rows = self._database.execute(
                "SELECT host.id, host.name, value, first_seen, last_seen, "
                "run FROM fact JOIN host ON host.id = fact.host"
                " WHERE fact.id IN (SELECT max(id) FROM seen WHERE seen.name = ? GROUP BY host) ORDER BY last_seen",
                (name,),
            ).fetchall()
            return {row[0]: (_text(row[1]), Seen(json.loads(row[2]), utc(row[3]), utc(row[4]), row[5])) for row in rows}

    def runs(self, limit: int = -1, host: str = "") -> list[RunSummary]:
        """The `limit` newest runs (-1: all), newest first; with `host`, those of hosts and machines of that name."""
        with HISTORY.reading(self.path):
            rows = self._database.execute(
                "SELECT id, command, started, ended, playbook, inventory, exit_code FROM run WHERE ? = '' OR id IN"
                " (SELECT run FROM outcome WHERE outcome.name = ? OR outcome.host = ?)"
                " ORDER BY started DESC, id DESC LIMIT ?",
                (host, host, self.named(host), limit),
            ).fetchall()
            return [
                RunSummary(id, command, utc(began), ended - began, playbook, inventory, code, self._outcomes(id))
                for id, command, began, ended, playbook, inventory, code in rows
            ]

    def _outcomes(self, run: str) -> tuple[HostSummary, ...]:
        rows = self._database.execute(
            "SELECT name, address, status,"
            " (SELECT count(*) FROM change WHERE change.run = outcome.run AND change.host = outcome.host AND done),"
            " (SELECT count(*) FROM finding JOIN saying ON saying.id = saying"
            "  WHERE finding.run = outcome.run AND finding.host = outcome.host"
            "  AND verdict IN ('fail', 'unknown'))"
            " FROM outcome WHERE run = ? ORDER BY name, address",
            (run,),
        )
        return tuple(HostSummary(_text(row[0]), _text(row[1]), _text(row[2]), row[3], row[4]) for row in rows)

    def previous(self, command: str, machine: int | None) -> dict[str, Any] | None:
        """A machine's part of the newest run of a command that was not interrupted; None if there is no such run.

        It has the form that `run` returns for a host, with two more keys: `run` (the run's id) and `ended` (UTC).
        """
        with HISTORY.reading(self.path):
            row = self._database.execute(
                "SELECT run.id, ended FROM outcome JOIN run ON run.id = run"
                " WHERE command = ? AND exit_code != 130 AND host = ? ORDER BY started DESC, run.id DESC LIMIT 1",
                (command, machine),
            ).fetchone()
            return {**self._outcome(row[0], machine), "run": row[0], "ended": utc(row[1])} if row else None

    def attempt(self, host: str, run: str = "last") -> tuple[str, dict[str, Any]]:
        """The id of a run of `try` on the machine that had this name last, and the key `try` of its document.

        `run` is a run's id, a unique prefix of it, or `last` for the newest such run. Raises UsageError when there is
        none.
        """
        with HISTORY.reading(self.path):
            rows = self._database.execute(
                "SELECT run, value FROM fact WHERE host = ? AND name = ? ORDER BY id DESC",
                (self.named(host), differences.ATTEMPT),
            ).fetchall()
            found = rows[:1] if run == "last" else [row for row in rows if row[0].startswith(run) and run]
            if len(found) == 1:
                document = json.loads(found[0][1])
                return _text(found[0][0]), document if isinstance(document, dict) else {}
        ids = ", ".join(str(row[0]) for row in rows[:6])
        problem = f"{len(found)} runs of try begin so" if found else f"no run of try on {host} is of that id"
        if not rows:
            problem = f"no run of try on {host} is in the history"
        fix = f"one of {ids}" if ids else f"invoke try --host {host} measures it as it is now"
        raise UsageError(f"run '{run}'", problem, "an earlier run of try on that host", fix)

    def last_good(self, machine: int | None) -> datetime.datetime | None:
        """The end time (UTC) of the newest run after which a machine was in the desired state; None if there is none.

        A provision without an error counts, even with failed findings, because it produces the requested state. Plans,
        facts and interrupted runs do not count, because they do not check the host.
        """
        with HISTORY.reading(self.path):
            row = self._database.execute(
                "SELECT max(ended) FROM outcome JOIN run ON run.id = run WHERE host = ?"
                " AND exit_code != 130 AND command IN ('provision', 'verify', 'accept', 'fleet.check', "
                "'fleet.report') AND (status IN ('ok', 'changed')"
                " OR command = 'provision' AND status = 'failed' AND coalesce(outcome.error, 'null') = 'null')",
                (machine,),
            ).fetchone()
            return utc(row[0]) if row[0] else None

    def readings(self, days: float, spans: int) -> dict[int, dict[str, list[Reading]]]:
        """Temperature and power of the last `days` by machine and UUID; `spans` as in `gpu_readings.since`."""
        now = time.time()
        with HISTORY.reading(self.path):
            return gpu_readings.since(self._database, now - days * 86400, now, spans)

    def run(self, id: str) -> dict[str, Any]:
        """A run as in the JSON document, without events, facts, and steps whose status is ok or skipped.

        `id` is a run's id, a unique prefix of it, or `last` for the newest run. Raises UsageError for any other id.
        """
        with HISTORY.reading(self.path):
            run = self._run_id(id)
            head = self._row(
                "SELECT id, command, started, ended, playbook, inventory, exit_code, error FROM run WHERE id = ?", run
            )
            head["run"] = head.pop("id")
            head["error"] = json.loads(head["error"] or "null")
            head["started"], head["ended"] = (utc(head[key]).isoformat() for key in ("started", "ended"))
            ids = self._database.execute(
                "SELECT host, name FROM outcome WHERE run = ? ORDER BY name, address", (run,)
            ).fetchall()
            return {**head, "hosts": {name: self._outcome(run, host) for host, name in ids}}

    def _outcome(self, run: str, host: int | None) -> dict[str, Any]:
        made = self._row(
            "SELECT address, status, error, simulated, rebooted, steps AS steps_planned, seconds FROM outcome"
            " WHERE run = ? AND host = ?", run, host,
        )  # fmt: skip
        if not isinstance(json.loads(made["error"] or "null"), (dict, type(None))):
            raise ValueError("the error of a run is no JSON object")
        made["seconds"], made["steps_planned"] = float(made["seconds"]), int(made["steps_planned"])
        made["error"], made["rebooted"] = json.loads(made["error"] or "null"), bool(made["rebooted"])
        of = "WHERE run = ? AND host = ? ORDER BY position"
        made["steps"] = self._rows(f"SELECT name, status, reason FROM step {of}", run, host)
        made["changes"] = [
            {**row, "disruptive": bool(row["disruptive"]), "done": bool(row["done"])}
            for row in self._rows(
                f"SELECT step, action, subject, before, after, disruptive, leads_to, done FROM change {of}", run, host
            )
        ]
        sayings = self._rows(f"SELECT saying.finding FROM finding JOIN saying ON saying.id = saying {of}", run, host)
        made["findings"] = [json.loads(row["finding"]) for row in sayings]
        tried = self._rows(
            "SELECT value FROM fact WHERE run = ? AND host = ? AND name = ?", run, host, differences.ATTEMPT
        )
        made["try"] = json.loads(tried[0]["value"]) if tried else None
        return made

    def _run_id(self, id: str) -> str:
        ids = [row[0] for row in self._database.execute("SELECT id FROM run ORDER BY started DESC, id DESC")]
        matching = ids[:1] if id == "last" else [run for run in ids if run.startswith(id) and id]
        if id in matching:
            return id
        if len(matching) != 1:
            problem = f"{len(matching)} runs begin so" if matching else "no run of that id is in the history"
            raise UsageError(f"run '{id}'", problem, "a run's id, its beginning, or `last`", "invoke history.list")
        return str(matching[0])

    def diff(self, host: str, since: datetime.datetime) -> list[Changed]:
        """`changed` of the machine that had this name last. Raises UsageError for an unknown name."""
        machine = self.named(host)
        if machine is None:
            with HISTORY.reading(self.path):
                known = [row[0] for row in self._database.execute("SELECT DISTINCT name FROM host ORDER BY name")]
            todo = f"the history knows {', '.join(known[:12])}" if known else "invoke facts"
            raise UsageError(f"host '{host}'", "no run has seen it", "a host of the history", todo)
        return self.changed(machine, since)

    def changed(self, machine: int, since: datetime.datetime) -> list[Changed]:
        """Changed facts of a machine and changes that runs made on it since a time, oldest first."""
        with HISTORY.reading(self.path):
            return differences.differences(self._database, machine, since.timestamp())

    def made(self, machine: int, since: datetime.datetime) -> list[Changed]:
        """The changes that runs made on a machine since a time, oldest first."""
        with HISTORY.reading(self.path):
            return differences.run_changes(self._database, machine, since.timestamp())

    def _rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self._database.execute(query, values)
        rows = [dict(zip([column[0] for column in cursor.description], row, strict=True)) for row in cursor]
        if any(isinstance(value, bytes) for row in rows for value in row.values()):
            raise ValueError("bytes in place of a text")
        return rows

    def _row(self, query: str, *values: Any) -> dict[str, Any]:
        return self._rows(query, *values)[0]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """An exclusive write transaction. An exception rolls it back."""
        with HISTORY.named(self.path):
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} in place of a text")
    return value
