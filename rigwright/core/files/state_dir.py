"""The state directory on this machine: $XDG_STATE_HOME/rigwright, or ~/.local/state/rigwright.

Under sudo the home directory and the owner of new files are those of the user who called sudo.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from pathlib import Path

from rigwright.core.errors import UsageError
from rigwright.core.files import atomic
from rigwright.core.process import startup


def place(*parts: str) -> Path:
    """A path in the state directory, which is in XDG_STATE_HOME, or in ~/.local/state of the user who called sudo.

    Raises UsageError for a user without a home directory when XDG_STATE_HOME is not set.
    """
    if state_home := os.environ.get("XDG_STATE_HOME"):
        return Path(state_home).joinpath("rigwright", *parts)
    owner = caller()
    home = Path(owner.pw_dir) if owner else startup.home()
    if home is None:
        problem = f"the user {os.getuid()} has no home directory"
        raise UsageError("HOME", problem, "a folder for the history and rollouts", "set HOME, or XDG_STATE_HOME")
    return home.joinpath(".local", "state", "rigwright", *parts)


def caller() -> pwd.struct_passwd | None:
    """The user who called sudo; None without sudo, or when that user is root or unknown."""
    name = os.environ.get("SUDO_USER", "")
    if os.geteuid() != 0 or name in ("", "root"):
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(name)
    return None


def give_to_caller(*paths: Path) -> None:
    """Makes the user who called sudo the owner of the paths; does nothing without sudo. Raises OSError."""
    if owner := caller():
        for path in paths:
            os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def make_folders(folder: Path) -> list[Path]:
    """Creates a folder and its parents with mode 0700; returns the folders that it created. Raises OSError."""
    fresh = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(fresh):
        path.mkdir(mode=0o700, exist_ok=True)
    return fresh


def write(path: Path, text: str, *, lasting: bool) -> None:
    """Writes a private file atomically; `lasting` as in `atomic.replace`. Raises OSError."""
    fresh = [*make_folders(path.parent), *([path] if path.is_symlink() or not path.exists() else [])]
    atomic.replace(path, text.encode("utf-8"), private=True, lasting=lasting)
    give_to_caller(*fresh)
