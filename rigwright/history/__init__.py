"""The history of runs: what each did, what it found, and what the hosts said of themselves over time. One SQLite file.

A machine is a name at an address, so a simulated `servbadge` and a real one have each their own past.
"""

from __future__ import annotations

import datetime
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rigwright.errors import HistoryError, UsageError
from rigwright.history import changes, readings, recording, schema
from rigwright.history.changes import Changed, utc
from rigwright.history.readings import Reading
from rigwright.history.schema import file, set_aside

__all__ = ["Changed", "History", "HistoryError", "HostSummary", "RunSummary", "Seen", "file", "set_aside"]


@dataclass(frozen=True)
class Seen:
    """A fact's value as JSON types, since when (UTC) it has been that, when it was last seen so, and the run that first saw it."""

    value: Any
    first_seen: datetime.datetime
    last_seen: datetime.datetime
    run: str


@dataclass(frozen=True)
class HostSummary:
    """What became of one host in a run: status as in the JSON document; how many changes were made, findings failed."""

    name: str
    address: str
    status: str
    changes: int
    failed: int


@dataclass(frozen=True)
class RunSummary:
    """One run, in a line; times in UTC."""

    id: str
    command: str
    started: datetime.datetime
    seconds: float
    playbook: str
    inventory: str
    exit_code: int
    hosts: tuple[HostSummary, ...]


class History:
    """An open history; for one thread. Every method raises HistoryError when the file cannot be used."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path = path
        self._database = database

    @classmethod
    def open(cls, path: Path | None = None, *, write: bool = True) -> History:
        """The history in `path` (default: `file()`), made where there is none; without `write` a file must be there. Raises HistoryError."""
        where = path or file()
        return cls(where, schema.connect(where, write))

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The file is closed."""
        self._database.close()

    def record(self, document: Mapping[str, Any]) -> None:
        """The run of a JSON document is part of the history, and what is too old no longer is. Recorded again it replaces itself.

        Raises UsageError for a bad RIGWRIGHT_HISTORY_DAYS.
        """
        now = time.time()
        started = recording.epoch(document.get("started"), now)
        ended = max(started, recording.epoch(document.get("ended"), now))
        oldest = ended - recording.kept_days() * 86400
        with self._writing() as database:
            recording.run(database, document, started, ended)
            recording.prune(database, oldest, ended - readings.KEPT_DAYS * 86400)
            readings.prune(database, ended)
        with schema.named(self.path):
            self._database.executescript("PRAGMA incremental_vacuum(10000)")  # execute() would give back one page

    def last(self, host: str, name: str, address: str = "", at: datetime.datetime | None = None) -> Seen | None:
        """What a fact was when it was last seen, by a run that is over; None when no run saw it.

        With `at` it is what the fact was at that time, and where no run saw it by then, what it was first of all. Without an
        address it is the machine of that name that was seen last.
        """
        until = at.timestamp() if at else float("inf")
        with schema.named(self.path):
            row = self._database.execute(
                "SELECT value, first_seen, last_seen, run FROM fact JOIN host ON host.id = fact.host"
                " WHERE host.name = ? AND (? = '' OR host.address = ?) AND fact.name = ?"
                " ORDER BY first_seen > ?, CASE WHEN first_seen > ? THEN first_seen ELSE -min(last_seen, ?) END, -fact.id LIMIT 1",
                (host, address, address, name, until, until, until),
            ).fetchone()
        return Seen(json.loads(row[0]), utc(row[1]), utc(row[2]), row[3]) if row else None

    def everywhere(self, name: str) -> dict[str, Seen]:
        """What a fact was when it was last seen, of every machine that a run saw, by its name; the machine seen last wins."""
        with schema.named(self.path):
            rows = self._database.execute(
                "SELECT host.name, value, first_seen, last_seen, run FROM fact JOIN host ON host.id = fact.host WHERE fact.id IN"
                " (SELECT max(id) FROM fact WHERE fact.name = ? GROUP BY host) ORDER BY last_seen",
                (name,),
            ).fetchall()
        return {row[0]: Seen(json.loads(row[1]), utc(row[2]), utc(row[3]), row[4]) for row in rows}

    def runs(self, limit: int = -1, host: str = "") -> list[RunSummary]:
        """The runs, newest first; of one host where it is named."""
        with schema.named(self.path):
            rows = self._database.execute(
                "SELECT id, command, started, ended, playbook, inventory, exit_code FROM run WHERE ? = '' OR id IN"
                " (SELECT run FROM outcome JOIN host ON host.id = outcome.host WHERE host.name = ?)"
                " ORDER BY started DESC, id DESC LIMIT ?",
                (host, host, limit),
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
            " FROM outcome JOIN host ON host.id = outcome.host WHERE run = ? ORDER BY host.name, address",
            (run,),
        )
        return tuple(HostSummary(*row) for row in rows)

    def previous(self, command: str, host: str, address: str) -> dict[str, Any] | None:
        """What the newest run of a command that was not interrupted knew of a host, as `run` has it, with that `run`'s id and when
        it `ended` (UTC); None where there is none."""
        with schema.named(self.path):
            row = self._database.execute(
                "SELECT run.id, ended, host.id FROM outcome JOIN run ON run.id = run JOIN host ON host.id = host"
                " WHERE command = ? AND exit_code != 130 AND name = ? AND address = ? ORDER BY started DESC, run.id DESC LIMIT 1",
                (command, host, address),
            ).fetchone()
            return {**self._outcome(row[0], row[2]), "run": row[0], "ended": utc(row[1])} if row else None

    def sound(self, host: str, address: str) -> datetime.datetime | None:
        """When the newest run ended that left or found a host as it should be (UTC); None where there is none.

        What a provision leaves is somebody's wish, findings or not; plans and facts judge nothing, nor do runs that were interrupted.
        """
        with schema.named(self.path):
            row = self._database.execute(
                "SELECT max(ended) FROM outcome JOIN run ON run.id = run JOIN host ON host.id = host WHERE name = ? AND address = ?"
                " AND exit_code != 130 AND command IN ('provision', 'verify', 'accept', 'fleet.check', 'fleet.report') AND (status IN ('ok', 'changed')"
                " OR command = 'provision' AND status = 'failed' AND coalesce(outcome.error, 'null') = 'null')",
                (host, address),
            ).fetchone()
        return utc(row[0]) if row[0] else None

    def readings(self, days: float, spans: int) -> dict[tuple[str, str], dict[str, list[Reading]]]:
        """By (name, address) of the host and UUID of the GPU how warm it was and what it drew of late; see readings.since."""
        now = time.time()
        with schema.named(self.path):
            return readings.since(self._database, now - days * 86400, now, spans)

    def run(self, id: str) -> dict[str, Any]:
        """A run as the JSON document has it, without events and facts, only with the steps that were not simply as wanted.

        The beginning of an id is enough where no other run's begins so; `last` is the newest. Raises UsageError.
        """
        with schema.named(self.path):
            run = self._named(id)
            head = self._row(
                "SELECT id, command, started, ended, playbook, inventory, exit_code, error FROM run WHERE id = ?", run
            )
            head["run"] = head.pop("id")
            head["error"] = json.loads(head["error"] or "null")
            head["started"], head["ended"] = (utc(head[key]).isoformat() for key in ("started", "ended"))
            ids = self._database.execute(
                "SELECT host.id, name FROM outcome JOIN host ON host.id = host WHERE run = ? ORDER BY name, address",
                (run,),
            ).fetchall()
            return {**head, "hosts": {name: self._outcome(run, host) for host, name in ids}}

    def _outcome(self, run: str, host: int) -> dict[str, Any]:
        made = self._row(
            "SELECT address, status, error, simulated, rebooted, steps AS steps_planned, seconds FROM outcome"
            " JOIN host ON host.id = host WHERE run = ? AND host = ?", run, host,
        )  # fmt: skip
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
        return made

    def _named(self, id: str) -> str:
        found = [row[0] for row in self._database.execute("SELECT id FROM run ORDER BY started DESC, id DESC")]
        matching = found[:1] if id == "last" else [one for one in found if one.startswith(id) and id]
        if id in matching:
            return id
        if len(matching) != 1:
            what = f"{len(matching)} runs begin so" if matching else "no run of that id is in the history"
            raise UsageError(f"run '{id}'", what, "a run's id, its beginning, or `last`", "invoke history.list")
        return str(matching[0])

    def diff(self, host: str, since: datetime.datetime, address: str = "") -> list[Changed]:
        """What became different on a host since a time, oldest first: facts leaf by leaf, and the changes that runs made.

        Raises UsageError for a host that no run has seen.
        """
        with schema.named(self.path):
            one = self._database.execute(
                "SELECT host.id FROM host LEFT JOIN outcome ON outcome.host = host.id LEFT JOIN run ON run.id = outcome.run"
                " WHERE name = ? AND (? = '' OR address = ?) ORDER BY run.started DESC LIMIT 1", (host, address, address),
            ).fetchone()  # fmt: skip
            if not one:
                known = [row[0] for row in self._database.execute("SELECT DISTINCT name FROM host ORDER BY name")]
                todo = f"the history knows {', '.join(known[:12])}" if known else "invoke facts"
                raise UsageError(f"host '{host}'", "no run has seen it", "a host of the history", todo)
            return changes.since(self._database, one[0], since.timestamp())

    def _rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self._database.execute(query, values)
        return [dict(zip([column[0] for column in cursor.description], row, strict=True)) for row in cursor]

    def _row(self, query: str, *values: Any) -> dict[str, Any]:
        return self._rows(query, *values)[0]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that nobody else writes beside; all of it, or nothing."""
        with schema.named(self.path):
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
