"""What runs leave on this machine: files below $XDG_STATE_HOME/rigwright, or ~/.local/state/rigwright; under sudo the caller's."""

from __future__ import annotations

import contextlib
import os
import pwd
from pathlib import Path

from rigwright import editing


def place(*parts: str) -> Path:
    """Where something of that name is kept: below XDG_STATE_HOME, or below ~/.local/state of who called sudo."""
    owner = _caller()
    home = Path(owner.pw_dir) if owner else Path.home()
    return Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state").joinpath("rigwright", *parts)


def _caller() -> pwd.struct_passwd | None:
    """The person behind sudo; None without one."""
    name = os.environ.get("SUDO_USER", "")
    if os.geteuid() != 0 or name in ("", "root"):
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(name)
    return None


def give(*paths: Path) -> None:
    """They belong to who called sudo. Raises OSError."""
    if owner := _caller():
        for one in paths:
            os.chown(one, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def made(folder: Path) -> list[Path]:
    """The folder is there; returns those that were not, which only their owner can read. Raises OSError."""
    fresh = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(fresh):
        one.mkdir(mode=0o700, exist_ok=True)
    return fresh


def write(path: Path, text: str, *, lasting: bool) -> None:
    """The file has this text, whole or not at all, and only its owner can read it; `lasting` as in `editing.replace`. Raises OSError."""
    fresh = [*made(path.parent), *([path] if path.is_symlink() or not path.exists() else [])]
    editing.replace(path, text.encode("utf-8"), private=True, lasting=lasting)
    give(*fresh)
