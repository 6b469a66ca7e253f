"""Atomic changes of files; mode, owner, links and line endings are preserved."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from rigwright.core.errors import UsageError

LOCK_S = 20.0
"""Seconds to wait for the lock of a folder."""
MOST_LINKS = 40
"""As the kernel's (path_resolution(7))."""
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


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
                problem = f"another process has held its lock for {LOCK_S:g} s"
                raise UsageError(str(folder), problem, "its lock", f"sudo fuser {folder}, and end what holds it")
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
    """Replaces the content of a file atomically; mode and owner are preserved. Raises OSError.

    A link is followed if no other user can have made it; otherwise a link in place of the file is replaced, and one in
    place of a folder is an error. A new file gets its mode from the umask, with `private` it is accessible only to its
    owner. `lasting`: the content is on the disk (fsync) when the function returns.
    """
    folder, name = open_folder(path.absolute())
    fresh = f".{name[:200]}.{secrets.token_hex(4)}"
    try:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with open(handle, "wb") as file:
                for part in (content,) if isinstance(content, bytes) else content:
                    file.write(part)
                file.flush()
                if lasting:
                    os.fsync(handle)
                before = _status(name, folder)
                if before and stat.S_ISREG(before.st_mode):
                    os.fchmod(handle, before.st_mode & 0o7777)
                    with contextlib.suppress(PermissionError):
                        os.fchown(handle, before.st_uid, before.st_gid)
                elif not private:
                    mask = os.umask(0)
                    os.umask(mask)
                    os.fchmod(handle, 0o666 & ~mask)
            os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(fresh, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def open_folder(path: Path) -> tuple[int, str]:
    """Opens the folder of a file; returns it and the name of the file in it. Each folder on the way is opened in the
    one before, so that no other user can exchange it meanwhile. Raises OSError."""
    folder, names, links = os.open("/", _FOLDER), [*reversed(path.parts[1:])], 0
    try:
        while names:
            name = names.pop()
            status = _status(name, folder)
            is_link = status is not None and stat.S_ISLNK(status.st_mode)
            if not names and not (is_link and _is_trusted(status, folder)):
                return folder, name
            if is_link:
                links += 1
                if not _is_trusted(status, folder):
                    raise PermissionError(errno.EPERM, f"'{name}' is a link that another user can have made", str(path))
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                target = Path(os.readlink(name, dir_fd=folder))
                is_absolute = target.is_absolute()
                names += reversed(target.parts[is_absolute:])
                following = os.open("/", _FOLDER) if is_absolute else os.dup(folder)
            else:
                following = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = following
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    except BaseException:
        os.close(folder)
        raise


def _status(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_trusted(link: os.stat_result | None, folder: int) -> bool:
    """Whether a link in a folder is root's or this user's, and no other user can have put it there."""
    about, own = os.fstat(folder), (0, os.geteuid())
    others_write = about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX
    return link is not None and link.st_uid in own and about.st_uid in own and not others_write


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
