"""Atomic changes of files; mode, owner, links and line endings are preserved."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from rigwright.core.errors import UsageError

LOCK_S = 20.0
"""Seconds to wait for the lock of a folder."""


def text_of(path: Path) -> str:
    """The text of a file with its line endings; "" if there is no file. Raises UsageError if it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(str(path), f"cannot be read: {error}", "a readable UTF-8 file") from None


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds an exclusive lock on a folder, and creates it if needed. Raises UsageError if that fails within LOCK_S."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise _refused(error, folder) from None
    try:
        until = time.monotonic() + LOCK_S
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > until:
                found = f"another process has held its lock for {LOCK_S:g} s"
                raise UsageError(str(folder), found, "its lock", f"sudo fuser {folder}, and end what holds it")
            time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def change(texts: Mapping[Path, str], proof: Callable[[], object]) -> None:
    """Writes all files and calls `proof`; restores all on an exception. Raises UsageError, and what `proof` raises."""
    before = {path: path.read_bytes() if path.exists() else None for path in texts}
    written = Path()
    try:
        for written, text in texts.items():
            written.parent.mkdir(parents=True, exist_ok=True)
            replace(written, text.encode("utf-8"))
        proof()
    except BaseException as error:
        for path, content in before.items():
            with contextlib.suppress(OSError):
                if content is None:
                    path.unlink(missing_ok=True)
                elif path.read_bytes() != content:
                    replace(path, content)
        if isinstance(error, OSError):
            raise _refused(error, Path(str(error.filename)) if error.filename else written) from None
        raise


def replace(path: Path, content: bytes | Iterable[bytes], *, private: bool = False, lasting: bool = True) -> None:
    """Replaces the content of a file atomically; links, mode and owner are preserved. Raises OSError.

    A new file gets its mode from the umask. With `private` a new file is accessible only to its owner, and a link is
    replaced, because root may be writing in another user's folder. `lasting`: the content is on the disk (fsync) when
    the function returns.
    """
    target = path if private else Path(os.path.realpath(path))
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name[:200]}.", delete=False) as fresh:
        try:
            for part in (content,) if isinstance(content, bytes) else content:
                fresh.write(part)
            fresh.flush()
            if lasting:
                os.fsync(fresh.fileno())
            if target.exists() and not target.is_symlink():
                status = target.stat()
                os.fchmod(fresh.fileno(), status.st_mode & 0o7777)
                with contextlib.suppress(PermissionError):
                    os.fchown(fresh.fileno(), status.st_uid, status.st_gid)
            elif not private:
                mask = os.umask(0)
                os.umask(mask)
                os.fchmod(fresh.fileno(), 0o666 & ~mask)
            os.replace(fresh.name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(fresh.name)
            raise


def remedy(error: OSError, path: Path) -> tuple[str, str]:
    """What is expected where a file cannot be written, and the command that shows why it cannot."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space on the disk of this machine", f"df -h {path.parent}"
    if error.errno == errno.EROFS:
        return "a file system that can be written", f"another directory; findmnt -T {path.parent} shows the file system"
    return "a directory that you may write", f"ls -ld {path.parent}; or another directory"


def _refused(error: OSError, path: Path) -> UsageError:
    where = path.parent if path.name.startswith(".") else path
    return UsageError(str(where), f"cannot be written: {error.strerror}", *remedy(error, path))
