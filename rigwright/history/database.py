"""The history file: its path and its tables."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from rigwright.core.errors import HistoryError, UsageError
from rigwright.core.files import state_dir
from rigwright.core.files.sqlite import Kind
from rigwright.history import gpu_readings, machines

APPLICATION = 0x72696777  # "rigw" in ASCII; the application id in the file's header

VERSION = 1

TABLES = (
    """CREATE TABLE run (id TEXT PRIMARY KEY, command TEXT NOT NULL, started REAL NOT NULL, ended REAL NOT NULL,
       playbook TEXT NOT NULL, inventory TEXT NOT NULL, exit_code INTEGER NOT NULL, error TEXT, whole INTEGER NOT NULL)""",
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
    "CREATE TABLE value (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    """CREATE TABLE seen (id INTEGER PRIMARY KEY, host INTEGER NOT NULL REFERENCES host (id), name TEXT NOT NULL, value INTEGER NOT NULL REFERENCES value (id),
       first_seen REAL NOT NULL, last_seen REAL NOT NULL, run TEXT NOT NULL)""",
    "CREATE INDEX seen_name ON seen (host, name, id)",
    "CREATE INDEX seen_value ON seen (value)",
    """CREATE VIEW fact AS SELECT seen.id AS id, host, name, text AS value, first_seen, last_seen, run FROM seen JOIN value ON value.id = seen.value""",
    *gpu_readings.TABLES,
    "CREATE TABLE baseline (host INTEGER PRIMARY KEY REFERENCES host (id), value TEXT NOT NULL)",
)
"""The SQL of all tables and indexes.

`saying` stores each distinct finding once as JSON, and `value` each distinct value of a fact; their ids are hashes of
the texts. `seen` says which machine had which value when; the view `fact` has both. `run.whole`: whether its findings
that are no problem are still stored. `outcome.steps` is the number of all steps of a run on a host, and `name` and
`address` are those of that run; `step` stores the steps whose status is not ok or skipped. `baseline` stores the values
that the checks of the next run compare a host with.
"""


def file() -> Path:
    """The path of the history: RIGWRIGHT_HISTORY, or history.sqlite in the state directory. Raises HistoryError."""
    if given := os.environ.get("RIGWRIGHT_HISTORY"):
        return Path(os.path.expanduser(given))
    try:
        return state_dir.place("history.sqlite")
    except UsageError as error:
        raise HistoryError(error.where, error.found, error.expected, error.fix) from None


HISTORY = Kind(
    application=APPLICATION,
    version=VERSION,
    tables=TABLES,
    error=HistoryError,
    content="the history of rigwright's runs",
    missing=("there is no history yet", "a run that it has recorded", "invoke verify"),
    set_aside="invoke history.set-aside renames it, and the next run begins a new one",
    place="RIGWRIGHT_HISTORY=FILE names another place",
)


def connect(path: Path, write: bool) -> sqlite3.Connection:
    """Opens a connection to a history, as `Kind.connect`."""
    return HISTORY.connect(path, write, given=bool(os.environ.get("RIGWRIGHT_HISTORY")))


def set_aside(path: Path) -> Path:
    """Renames the history to `.aside-` and the time; returns the new path. Raises HistoryError if this fails."""
    aside = path.with_name(f"{path.name}.aside-{time.strftime('%Y%m%d-%H%M%S')}")
    with HISTORY.named(path):
        if not path.exists():
            raise HistoryError(str(path), "there is no history yet", "a file to set aside")
        for end in ("-wal", "-shm", ""):  # the database last, so that SQLite cannot use the old log with a new database
            part = path.with_name(path.name + end)
            if part.exists():
                part.rename(aside.with_name(aside.name + end))
    return aside
