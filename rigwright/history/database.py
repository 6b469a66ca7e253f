"""The history file: its path, its tables, and connections to it."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from rigwright.core import state_dir
from rigwright.core.errors import HistoryError, UsageError
from rigwright.history import machines, samples

BUSY_S = 10.0
APPLICATION = 0x72696777  # "rigw" in ASCII; the application id in the file's header

VERSION = 1

TABLES = (
    """CREATE TABLE run (id TEXT PRIMARY KEY, command TEXT NOT NULL, started REAL NOT NULL, ended REAL NOT NULL,
       playbook TEXT NOT NULL, inventory TEXT NOT NULL, exit_code INTEGER NOT NULL, error TEXT)""",
    "CREATE INDEX run_started ON run (started)",
    *machines.TABLES,
    """CREATE TABLE outcome (run TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE, host INTEGER NOT NULL REFERENCES host (id),
       name TEXT NOT NULL, address TEXT NOT NULL, status TEXT NOT NULL, error TEXT, simulated TEXT NOT NULL, rebooted INTEGER NOT NULL, steps INTEGER NOT NULL,
       seconds REAL NOT NULL, PRIMARY KEY (run, host)) WITHOUT ROWID""",
    "CREATE INDEX outcome_host ON outcome (host)",
    """CREATE TABLE step (run TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE, host INTEGER NOT NULL, position INTEGER NOT NULL,
       name TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (run, host, position)) WITHOUT ROWID""",
    """CREATE TABLE change (run TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE, host INTEGER NOT NULL, position INTEGER NOT NULL,
       step TEXT NOT NULL, action TEXT NOT NULL, subject TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL,
       disruptive INTEGER NOT NULL, leads_to TEXT NOT NULL, done INTEGER NOT NULL, PRIMARY KEY (run, host, position)) WITHOUT ROWID""",
    """CREATE TABLE saying (id INTEGER PRIMARY KEY, verdict TEXT NOT NULL, finding TEXT NOT NULL)""",
    """CREATE TABLE finding (run TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE, host INTEGER NOT NULL, position INTEGER NOT NULL,
       saying INTEGER NOT NULL REFERENCES saying (id), PRIMARY KEY (run, host, position)) WITHOUT ROWID""",
    "CREATE INDEX finding_saying ON finding (saying)",
    """CREATE TABLE fact (id INTEGER PRIMARY KEY, host INTEGER NOT NULL REFERENCES host (id), name TEXT NOT NULL, value TEXT NOT NULL,
       first_seen REAL NOT NULL, last_seen REAL NOT NULL, run TEXT NOT NULL)""",
    "CREATE INDEX fact_name ON fact (host, name, id)",
    samples.TABLE,
    "CREATE TABLE baseline (host INTEGER PRIMARY KEY REFERENCES host (id), value TEXT NOT NULL)",
)
"""The SQL of all tables and indexes.

`saying` stores each distinct finding once as JSON; its id is a hash of the text. `outcome.steps` is the number of all
steps of a run on a host, and `name` and `address` are those of that run; `step` stores the steps whose status is not ok or skipped. `baseline` stores the values that
the checks of the next run compare a host with.
"""


def file() -> Path:
    """The path of the history: RIGWRIGHT_HISTORY, or history.sqlite in the state directory. Raises HistoryError when there is no home."""
    if given := os.environ.get("RIGWRIGHT_HISTORY"):
        return Path(os.path.expanduser(given))
    try:
        return state_dir.place("history.sqlite")
    except UsageError as error:
        raise HistoryError(error.where, error.found, error.expected, error.fix) from None


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Converts errors of SQLite and of the file system to HistoryError with a fix."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "UTF-8" in text:
            raise damaged(path, text) from None
        if "locked" in text or "busy" in text:
            raise HistoryError(str(path), f"another process has held it for {BUSY_S:g} s", "a moment alone") from None
        if "readonly" in text or "unable to open" in text:
            raise HistoryError(str(path), f"cannot be written ({text})", *_WRITABLE) from None
        raise HistoryError(
            str(path), text, "a file that SQLite can write", "df shows whether the disk is full"
        ) from None
    except sqlite3.DatabaseError as error:
        raise damaged(path, str(error)) from None
    except OSError as error:
        raise HistoryError(str(path), f"cannot be used ({error.strerror})", *_WRITABLE) from None


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """As `named`, for code that only reads: a value in the file that has another form than rigwright wrote is damage too."""
    with named(path):
        try:
            yield
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            raise damaged(path, f"a value in it cannot be read: {str(error)[:100]}") from None
        except OSError as error:  # a time beyond those of this machine
            if error.errno != errno.EOVERFLOW:
                raise
            raise damaged(path, "a time in it is none") from None


def damaged(path: Path, why: str) -> HistoryError:
    """The error for a file whose content is not that of a history."""
    return HistoryError(
        str(path), f"is damaged ({why})", "the history of rigwright's runs", f"{_SET_ASIDE}; or restore a copy"
    )


_SET_ASIDE = "invoke history.set-aside renames it, and the next run begins a new one"
_WRITABLE = ("a file that you may write", "RIGWRIGHT_HISTORY=FILE names another place")


def connect(path: Path, write: bool) -> sqlite3.Connection:
    """Opens a connection to a history of this version. Without `write` it creates no file and accepts a read-only file.

    Raises HistoryError when the file does not exist (only without `write`), is damaged, belongs to another program or
    version, is not writable, or is locked for longer than BUSY_S.
    """
    with named(path):
        if write:
            _made(path)
        elif not path.exists():
            raise HistoryError(str(path), "there is no history yet", "a run that it has recorded", "invoke verify")
        mode = "rw" if write or os.access(path, os.W_OK) else "ro"
        database = _opened(path, mode)
        try:
            if _version(database, path) == 0:
                _create_tables(database, path)
            database.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            database.close()
            raise
    return database


def _opened(path: Path, mode: str) -> sqlite3.Connection:
    """Opens the file. SQLite can open a file in a read-only folder only as immutable."""
    where = path.resolve().as_uri()
    database = sqlite3.connect(f"{where}?mode={mode}", uri=True, timeout=BUSY_S, isolation_level=None)
    try:
        database.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError as error:
        database.close()
        if mode != "ro" or "unable to open" not in str(error):
            raise
        database = sqlite3.connect(f"{where}?immutable=1", uri=True, isolation_level=None)
        database.execute("PRAGMA user_version").fetchone()
    return database


def _made(path: Path) -> None:
    """Creates the file and its folders for the owner only; under sudo, that is the user who called it."""
    fresh = state_dir.made(path.parent)
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        fresh.append(path)
    if not os.environ.get("RIGWRIGHT_HISTORY"):
        state_dir.give(*fresh)


def _create_tables(database: sqlite3.Connection, path: Path) -> None:
    """Creates the tables of this version in an empty file."""
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    _to_wal(database)
    database.execute("BEGIN IMMEDIATE")
    try:
        if _version(database, path) == 0:  # no other process has created them in the meantime
            for statement in TABLES:
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {APPLICATION}")
            database.execute(f"PRAGMA user_version = {VERSION}")
        database.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def _to_wal(database: sqlite3.Connection) -> None:
    """Switches to write-ahead logging. Retries for BUSY_S, because SQLite's timeout does not apply to this switch."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _version(database: sqlite3.Connection, path: Path) -> int:
    """The version of the file, 0 if it is empty. Raises HistoryError for another program, version or other tables."""
    # One statement, because another process may be creating the tables.
    version, application, empty = database.execute(
        "SELECT user_version, application_id, NOT EXISTS (SELECT 1 FROM sqlite_master)"
        " FROM pragma_user_version, pragma_application_id"
    ).fetchone()
    if empty and application == version == 0:
        return 0
    if application != APPLICATION:
        raise HistoryError(str(path), "is another program's database", "rigwright's own history", _WRITABLE[1])
    if version != VERSION:
        problem = (
            f"was written by {'a newer' if version > VERSION else 'an older'} rigwright (version {version} of the file)"
        )
        raise HistoryError(str(path), problem, f"version {VERSION}", f"use that rigwright; or {_SET_ASIDE}")
    if not set(TABLES) <= {sql for (sql,) in database.execute("SELECT sql FROM sqlite_master")}:
        problem = "has other tables than this rigwright uses"
        raise HistoryError(
            str(path), problem, f"the tables of version {VERSION}", f"use the rigwright that wrote it; or {_SET_ASIDE}"
        )
    return VERSION


def set_aside(path: Path) -> Path:
    """Renames the history to `.aside-` and the time; returns the new path. Raises HistoryError if this fails."""
    aside = path.with_name(f"{path.name}.aside-{time.strftime('%Y%m%d-%H%M%S')}")
    with named(path):
        if not path.exists():
            raise HistoryError(str(path), "there is no history yet", "a file to set aside")
        for end in ("-wal", "-shm", ""):  # the database last, so that SQLite cannot use the old log with a new database
            part = path.with_name(path.name + end)
            if part.exists():
                part.rename(aside.with_name(aside.name + end))
    return aside
