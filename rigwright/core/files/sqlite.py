"""SQLite files of rigwright: their creation, version, connections, and what their errors mean for the user."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from rigwright.core.errors import RigwrightError
from rigwright.core.files import state_dir

BUSY_S = 10.0


class Kind(Struct, frozen=True):
    """A kind of file. `application`: the id in its header; `tables`: the SQL of version `version`.

    The errors are of the class `error`. `content`: what such a file has, in words; `missing`: what is wrong without the
    file, what is expected and the fix. `set_aside` is the fix for a file that cannot be used, `place` that for one in
    the wrong place.
    """

    application: int
    version: int
    tables: tuple[str, ...]
    error: type[RigwrightError]
    content: str
    missing: tuple[str, str, str]
    set_aside: str
    place: str

    def damaged(self, path: Path, why: str) -> RigwrightError:
        """The error for a file whose content is not of this kind."""
        return self.error(str(path), f"is damaged ({why})", self.content, f"{self.set_aside}; or restore a copy")

    @contextlib.contextmanager
    def named(self, path: Path) -> Iterator[None]:
        """Converts errors of SQLite and of the file system to errors with a fix."""
        writable = ("a file that you may write", self.place)
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "UTF-8" in text:
                raise self.damaged(path, text) from None
            if "locked" in text or "busy" in text:
                problem = f"another process has held it for {BUSY_S:g} s"
                raise self.error(str(path), problem, "a moment alone", f"fuser -v {path} names that process") from None
            if "readonly" in text or "unable to open" in text:
                raise self.error(str(path), f"cannot be written ({text})", *writable) from None
            fix = "df shows whether the disk is full"
            raise self.error(str(path), text, "a file that SQLite can write", fix) from None
        except sqlite3.DatabaseError as error:
            raise self.damaged(path, str(error)) from None
        except OSError as error:
            raise self.error(str(path), f"cannot be used ({error.strerror})", *writable) from None

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """As `named`, for code that only reads: a value that rigwright would not have written is damage too."""
        with self.named(path):
            try:
                yield
            except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
                raise self.damaged(path, f"a value in it cannot be read: {str(error)[:100]}") from None
            except OSError as error:  # a time beyond those of this machine
                if error.errno != errno.EOVERFLOW:
                    raise
                raise self.damaged(path, "a time in it is out of range") from None

    def connect(self, path: Path, write: bool, given: bool = False) -> sqlite3.Connection:
        """Opens a connection to a file of this version. Without `write` it creates no file and accepts a read-only
        file.

        `given`: the user chose the path; then under sudo the file is not made that of the user who called it. Raises
        the kind's error when the file does not exist (only without `write`), is damaged, belongs to another program or
        version, is not writable, is locked for longer than BUSY_S, or is a link in a folder of the user who called
        sudo.
        """
        with self.named(path):
            if path.is_symlink() and not given and state_dir.caller() is not None:
                problem = "is a link, and root writes through no link of another user"
                raise self.error(str(path), problem, "a file", f"run without sudo; or {self.set_aside}")
            if not write and not path.exists():
                raise self.error(str(path), *self.missing)
            if write:  # the file and its folders are for the owner only; under sudo, that is the user who called it
                fresh = state_dir.make_folders(path.parent)
                if not path.exists():
                    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
                    fresh.append(path)
                if not given:
                    state_dir.give_to_caller(*fresh)
            database = _opened(path, "rw" if write or os.access(path, os.W_OK) else "ro")
            try:
                if self._version(database, path) == 0:
                    self._create_tables(database, path)
                database.execute("PRAGMA foreign_keys = ON")
            except BaseException:
                database.close()
                raise
        return database

    def _create_tables(self, database: sqlite3.Connection, path: Path) -> None:
        """Creates the tables of this version in an empty file."""
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _to_wal(database)
        database.execute("BEGIN IMMEDIATE")
        try:
            if self._version(database, path) == 0:  # no other process has created them in the meantime
                for statement in self.tables:
                    database.execute(statement)
                database.execute(f"PRAGMA application_id = {self.application}")
                database.execute(f"PRAGMA user_version = {self.version}")
            database.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            raise

    def _version(self, database: sqlite3.Connection, path: Path) -> int:
        """The version of the file, 0 if it is empty. Raises the kind's error for a file of another form."""
        # One statement, because another process may be creating the tables.
        version, application, empty = database.execute(
            "SELECT user_version, application_id, NOT EXISTS (SELECT 1 FROM sqlite_master)"
            " FROM pragma_user_version, pragma_application_id"
        ).fetchone()
        if empty and application == version == 0:
            return 0
        if application != self.application:
            problem = "is another program's database"
            raise self.error(str(path), problem, f"{self.content}, of rigwright itself", self.place)
        if version != self.version:
            age = "a newer" if version > self.version else "an older"
            problem = f"was written by {age} rigwright (version {version} of the file)"
            raise self.error(str(path), problem, f"version {self.version}", f"use that rigwright; or {self.set_aside}")
        if not set(self.tables) <= {sql for (sql,) in database.execute("SELECT sql FROM sqlite_master")}:
            problem, expected = "has other tables than this rigwright uses", f"the tables of version {self.version}"
            raise self.error(str(path), problem, expected, f"use the rigwright that wrote it; or {self.set_aside}")
        return self.version


def _opened(path: Path, mode: str) -> sqlite3.Connection:
    """Opens the file. SQLite can open a file in a read-only folder only as immutable."""
    where = path.resolve().as_uri()
    database = sqlite3.connect(
        f"{where}?mode={mode}", uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        database.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError as error:
        database.close()
        if mode != "ro" or "unable to open" not in str(error):
            raise
        database = sqlite3.connect(f"{where}?immutable=1", uri=True, isolation_level=None)
        database.execute("PRAGMA user_version").fetchone()
    return database


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
