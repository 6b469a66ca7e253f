"""A user without an entry in passwd, as in many containers: libraries ask for the name and the home directory, and fail
without."""

from __future__ import annotations

import os
from pathlib import Path

NO_HOME = "/nonexistent"
"""The home directory of a user who has none; Debian uses the same."""
_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def secure() -> None:
    """Gives this process a user name and a home directory where the environment and passwd have none: the number, and
    NO_HOME."""
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
    found = os.path.expanduser("~")
    return None if found in ("~", NO_HOME) else Path(found)
