"""The history's file: where it is, its tables, and a connection to it that is ready or refused by name."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from rigwright import state
from rigwright.errors import HistoryError
from rigwright.history import readings

BUSY_S = 10.0
APPLICATION = 0x72696777  # "rigw"; stands in the file's header

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE run (id TEXT PRIMARY KEY, command TEXT NOT NULL, started REAL NOT NULL, ended REAL NOT NULL,
           playbook TEXT NOT NULL, inventory TEXT NOT NULL, exit_code INTEGER NOT NULL, error TEXT)""",
        "CREATE INDEX run_started ON run (started)",
        """CREATE TABLE host (id INTEGER PRIMARY KEY, name TEXT NOT NULL, address TEXT NOT NULL, UNIQUE (name, address))""",
        """CREATE TABLE outcome (run TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE, host INTEGER NOT NULL REFERENCES host (id),
           status TEXT NOT NULL, error TEXT, simulated TEXT NOT NULL, rebooted INTEGER NOT NULL, steps INTEGER NOT NULL,
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
    ),
    (readings.TABLE,),
)
"""What takes the file from each version to the next, one transaction each. A `saying` is a finding as JSON, kept once
however many runs say it, under a number made from its text; `outcome.steps` counts all steps, `step` holds those that were not simply as wanted."""

VERSION = len(MIGRATIONS)


def file() -> Path:
    """RIGWRIGHT_HISTORY, or history.sqlite beside what else runs leave."""
    if given := os.environ.get("RIGWRIGHT_HISTORY"):
        return Path(given).expanduser()
    return state.place("history.sqlite")


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """What SQLite and the file system refuse comes out as HistoryError, with what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text or "busy" in text:
            raise HistoryError(str(path), f"another process has held it for {BUSY_S:g} s", "a moment alone") from None
        if "readonly" in text or "unable to open" in text:
            raise HistoryError(str(path), f"cannot be written ({text})", *_WRITABLE) from None
        raise HistoryError(
            str(path), text, "a file that SQLite can write", "df shows whether the disk is full"
        ) from None
    except sqlite3.DatabaseError as error:
        todo = "invoke history.set-aside keeps it beside a new one; or put a copy of your own in its place"
        raise HistoryError(str(path), f"is damaged ({error})", "the history of rigwright's runs", todo) from None
    except OSError as error:
        raise HistoryError(str(path), f"cannot be used ({error.strerror})", *_WRITABLE) from None


_WRITABLE = ("a file that you may write", "RIGWRIGHT_HISTORY=FILE names another place")


def connect(path: Path, write: bool) -> sqlite3.Connection:
    """A connection to a history of this version. Without `write` nothing is created, and a file that cannot be written is read.

    Raises HistoryError: not there (only without `write`), damaged, of another program, of a newer rigwright, not writable, busy.
    """
    with named(path):
        if write:
            _made(path)
        elif not path.exists():
            raise HistoryError(str(path), "there is no history yet", "a run that it has recorded", "invoke verify")
        mode = "rw" if write or os.access(path, os.W_OK) else "ro"
        database = _opened(path, mode)
        try:
            if mode == "rw" or not 0 < _version(database, path) < VERSION:  # an older file is read as it stands
                _migrate(database, path)
            database.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            database.close()
            raise
    return database


def _opened(path: Path, mode: str) -> sqlite3.Connection:
    """The file, open; one in a folder that cannot be written is read as it stands, which is all that SQLite can do there."""
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
    """The file and its folders are there, only for their owner to read; what is made under sudo belongs to the caller."""
    fresh = state.made(path.parent)
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        fresh.append(path)
    if not os.environ.get("RIGWRIGHT_HISTORY"):
        state.give(*fresh)


def _migrate(database: sqlite3.Connection, path: Path) -> None:
    """The file has this version's tables. Raises HistoryError for a newer one, and for another program's file."""
    version = _version(database, path)
    if version == VERSION:
        return
    if version == 0:
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _to_wal(database)
    database.execute("BEGIN IMMEDIATE")
    try:
        for number in range(_version(database, path), VERSION):  # asked again: another process may have been quicker
            for statement in MIGRATIONS[number]:
                database.execute(statement)
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute(f"PRAGMA user_version = {VERSION}")
        database.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def _to_wal(database: sqlite3.Connection) -> None:
    """Readers do not wait for a writer. SQLite's own patience does not cover this switch, so it is asked again."""
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
    at_once = "SELECT user_version, application_id, NOT EXISTS (SELECT 1 FROM sqlite_master) FROM pragma_user_version, pragma_application_id"
    version, program, empty = database.execute(at_once).fetchone()  # one statement: another process may be making it
    if program != APPLICATION and not (empty and program == version == 0):
        raise HistoryError(str(path), "is another program's database", "rigwright's own history", _WRITABLE[1])
    if version > VERSION:
        found = f"is of a newer rigwright (version {version} of the file; this one knows {VERSION})"
        raise HistoryError(str(path), found, "the rigwright that wrote it", f"update this one; {_WRITABLE[1]}")
    return int(version)


def set_aside(path: Path) -> Path:
    """The file stands beside its place under a name with the time, whole; returns that. Raises HistoryError."""
    aside = path.with_name(f"{path.name}.aside-{time.strftime('%Y%m%d-%H%M%S')}")
    with named(path):
        if not path.exists():
            raise HistoryError(str(path), "there is no history yet", "a file to set aside")
        for end in ("-wal", "-shm", ""):  # the file last: without it the others would be taken for a new file's
            part = path.with_name(path.name + end)
            if part.exists():
                part.rename(aside.with_name(aside.name + end))
    return aside
