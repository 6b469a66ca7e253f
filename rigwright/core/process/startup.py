"""What the process of a command needs before the command runs."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from pathlib import Path

from rigwright.core.process import streams

NO_HOME = "/nonexistent"
"""The home directory of a user who has none; Debian uses the same."""
_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def prepare() -> None:
    """Makes streams and user of this process usable, and lets it keep what it compiles and loads."""
    streams.secure()
    secure_user()
    streams.guard()
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)  # Invoke turns the bytecode cache off
    gc.set_threshold(100_000)  # modules stay loaded: collecting garbage among them takes 4 % of a short command
    atexit.register(gc.freeze)  # nor at the end of the process, which takes 7 %


def secure_user() -> None:
    """Gives this process a user name and a home directory where the environment and passwd have none: the number, and
    NO_HOME.

    In many containers the user has no entry in passwd, and libraries that look for one fail.
    """
    if "HOME" in os.environ and any(os.environ.get(name) for name in _NAMES):
        return
    import pwd

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("HOME", NO_HOME)
        if not any(os.environ.get(name) for name in _NAMES):
            os.environ["LOGNAME"] = str(os.getuid())


def home() -> Path | None:
    """The home directory of the user who runs this process; None without one."""
    path = os.path.expanduser("~")
    return None if path in ("~", NO_HOME) else Path(path)
