"""The journal of rollouts, from which `provision --resume` continues, also after this process, a worker or the
scheduler was killed.

It is an SQLite file of the state directory. A rollout is written before its first change, and each host before its work
is given out and when it has ended, with the hash of its plan (`rollout.digest`). A host that had ended without an entry
is planned again by the next run, which finds nothing to do.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from rigwright.core import host_ranges
from rigwright.core.errors import UsageError
from rigwright.core.files import state_dir
from rigwright.core.files.sqlite import Kind
from rigwright.engine import run_owner

TABLES = (
    """CREATE TABLE rollout (run TEXT PRIMARY KEY, began REAL NOT NULL, runs TEXT NOT NULL, inventory TEXT NOT NULL, playbook TEXT NOT NULL,
       host TEXT NOT NULL, tags TEXT NOT NULL, max_fail INTEGER, reboots INTEGER NOT NULL, controller TEXT NOT NULL)""",
    """CREATE TABLE host (rollout TEXT NOT NULL REFERENCES rollout (run) ON DELETE CASCADE, position INTEGER NOT NULL, name TEXT NOT NULL,
       batch INTEGER, state TEXT NOT NULL, plan TEXT NOT NULL, PRIMARY KEY (rollout, name)) WITHOUT ROWID""",
)
"""`runs`: a JSON list of the run that began the rollout and those that continued it. `controller`: the process that
works on it (`run_owner.owner`), or "". `batch` is NULL for a host that needed no change."""


class Rollout(Struct, frozen=True):
    """A rollout: its files, its hosts in batches, and the hosts that are done.

    `run`: the run that began it; `runs`: that one and those that continued it, in order. `max_fail`: None for no limit.
    `done`: by host the digest of its steps and checks. `record_begin`: hosts at work.
    """

    run: str
    inventory: str
    playbook: str
    host: str
    tags: str
    max_fail: int | None
    reboots: int
    hosts: tuple[str, ...]
    batches: tuple[tuple[str, ...], ...] = ()
    done: dict[str, str] = field(default_factory=dict)
    begun: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    @property
    def pending(self) -> tuple[str, ...]:
        """The hosts that are not done."""
        return tuple(name for name in self.hosts if name not in self.done)


State = Literal["waiting", "begun", "done", "failed"]


def file() -> Path:
    """The path of the journal. Raises UsageError for a user without a home directory."""
    return state_dir.place("rollouts.sqlite")


def _kind(path: Path) -> Kind:
    return Kind(
        application=0x7269676A,  # "rigj" in ASCII
        version=1,
        tables=TABLES,
        error=UsageError,
        content="the journal of rollouts",
        missing=("no rollout was stopped", "a rollout that has hosts left", _BEGIN),
        set_aside=f"mkdir {path.parent}/aside && mv {path}* {path.parent}/aside, then provision without --resume: "
        "hosts that are done need no change",
        place="set XDG_STATE_HOME to a folder of your own",
    )


_BEGIN = "begin one: invoke provision --host PATTERN --serial 1,10%,100%"


@contextlib.contextmanager
def _writing() -> Iterator[sqlite3.Connection]:
    """A transaction on the journal, which is durable when the context ends. Raises UsageError."""
    path = file()
    kind = _kind(path)
    with contextlib.closing(kind.connect(path, write=True)) as database, kind.named(path):
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")


@contextlib.contextmanager
def _before_any_host() -> Iterator[None]:
    """Adds the consequence for the rollout to the error of a journal that cannot be used."""
    try:
        yield
    except UsageError as error:
        if error.where == str(file()):
            error.found += "; so no host was changed, because a rollout that stops could not be resumed"
        raise


def begin(rollout: Rollout) -> None:
    """Writes a new rollout of this process, in place of older ones of the same hosts and files.

    Raises UsageError when the journal cannot be written (then no host may be changed, because --resume would not work),
    or when another process of this machine works on a rollout with one of these hosts.
    """
    subject = (rollout.inventory, rollout.playbook, rollout.host, rollout.tags)
    limits = (rollout.max_fail, rollout.reboots, run_owner.owner(rollout.runs[-1]))
    of_batch = {name: number for number, batch in enumerate(rollout.batches) for name in batch}
    with _before_any_host(), _writing() as database:
        for run, *other in database.execute("SELECT run, inventory, playbook, host, tags FROM rollout").fetchall():
            _require_alone(database, rollout, run)
            if tuple(other) == subject:
                database.execute("DELETE FROM rollout WHERE run = ?", (run,))
        row = (rollout.run, time.time(), json.dumps(rollout.runs), *subject, *limits)
        database.execute("INSERT INTO rollout VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        database.executemany(
            "INSERT INTO host VALUES (?, ?, ?, ?, 'waiting', '')",
            [(rollout.run, at, name, of_batch.get(name)) for at, name in enumerate(rollout.hosts)],
        )


def resume(rollout: Rollout) -> None:
    """Writes that this process continues a rollout, and with which limits. Raises UsageError as `begin`."""
    with _before_any_host(), _writing() as database:
        runs = [run for (run,) in database.execute("SELECT run FROM rollout").fetchall()]
        if rollout.run not in runs:
            problem = f"the rollout of run {rollout.run} has ended meanwhile"
            raise UsageError("--resume", problem, "a rollout that has hosts left", _BEGIN)
        for run in runs:
            _require_alone(database, rollout, run)
        owner = run_owner.owner(rollout.runs[-1])
        database.execute(
            "UPDATE rollout SET runs = ?, max_fail = ?, reboots = ?, controller = ? WHERE run = ?",
            (json.dumps(rollout.runs), rollout.max_fail, rollout.reboots, owner, rollout.run),
        )


def _require_alone(database: sqlite3.Connection, rollout: Rollout, other: str) -> None:
    """Raises UsageError while a process works on the rollout `other`, if that has hosts of this one."""
    inventory, controller = database.execute(
        "SELECT inventory, controller FROM rollout WHERE run = ?", (other,)
    ).fetchone()
    if inventory != rollout.inventory or not run_owner.alive(controller):
        return
    names = {name for (name,) in database.execute("SELECT name FROM host WHERE rollout = ?", (other,))}
    if both := [name for name in rollout.hosts if name in names]:
        run, _, process, *_ = controller.split()
        problem = f"run {run} is at work on {host_ranges.folded(both)} (process {process} of this machine)"
        fix = f"wait for it, or end it: kill {process}; then provision --resume continues it"
        raise UsageError("the rollout", problem, "one controller at a time", fix)


def record_begin(run: str, plans: Mapping[str, str]) -> None:
    """Writes that the work on these hosts is given out now, with the hash of each one's plan. Raises UsageError."""
    with _writing() as database:
        database.executemany(
            "UPDATE host SET state = 'begun', plan = ? WHERE rollout = ? AND name = ?",
            [(plan, run, name) for name, plan in plans.items()],
        )


def record_end(run: str, host: str, plan: str, done: bool) -> None:
    """Writes that the work on a host has ended, with the hash of its plan. Raises UsageError."""
    with _writing() as database:
        database.execute(
            "UPDATE host SET state = ?, plan = ? WHERE rollout = ? AND name = ?",
            ("done" if done else "failed", plan, run, host),
        )


def leave(run: str) -> None:
    """Writes that this process no longer works on a rollout. Raises UsageError."""
    with _writing() as database:
        database.execute("UPDATE rollout SET controller = '' WHERE run = ?", (run,))


def end(run: str) -> None:
    """Deletes a rollout, all hosts of which are done. Raises UsageError."""
    with _writing() as database:
        database.execute("DELETE FROM rollout WHERE run = ?", (run,))


def last_stopped() -> Rollout:
    """The last rollout that has hosts left. Raises UsageError if there is none or the journal cannot be read."""
    path = file()
    kind = _kind(path)
    if not path.exists():
        raise UsageError("--resume", *kind.missing)
    with contextlib.closing(kind.connect(path, write=False)) as database, kind.reading(path):
        row = database.execute(
            "SELECT run, runs, inventory, playbook, host, tags, max_fail, reboots FROM rollout"
            " ORDER BY began DESC, run DESC LIMIT 1"
        ).fetchone()
        if row is not None:
            rows = database.execute(
                "SELECT name, batch, state, plan FROM host WHERE rollout = ? ORDER BY position", (row[0],)
            ).fetchall()
            return _read(row, rows)
    raise UsageError("--resume", *kind.missing)


def _read(row: Sequence[object], rows: Sequence[tuple[str, int | None, State, str]]) -> Rollout:
    """The rollout of these rows. Raises ValueError, TypeError for a value that rigwright did not write."""
    run, runs, inventory, playbook, host, tags, max_fail, reboots = row
    batches: dict[int, list[str]] = {}
    for name, batch, _, _ in rows:
        if batch is not None:
            batches.setdefault(int(batch), []).append(name)
    return Rollout(
        run=str(run),
        inventory=str(inventory),
        playbook=str(playbook),
        host=str(host),
        tags=str(tags),
        max_fail=None if max_fail is None else int(str(max_fail)),
        reboots=int(str(reboots)),
        hosts=tuple(name for name, *_ in rows),
        batches=tuple(tuple(batches[number]) for number in sorted(batches)),
        done={name: plan for name, _, state, plan in rows if state == "done"},
        begun=tuple(name for name, _, state, _ in rows if state == "begun"),
        runs=tuple(map(str, json.loads(str(runs)))),
    )
