"""The lock that lets only one lab command at a time change this machine, and the check for root."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator

from lab.base.paths import HOSTS, RUN, STATE, folder
from rigwright.core.errors import HostError, UsageError

LOCK_S = 1800.0


def need_root(command: str) -> None:
    """Sets the umask so that the host can read files on its disk. Raises UsageError when not run as root."""
    os.umask(0o022)
    if os.geteuid() != 0:
        raise UsageError(
            "lab", "simulated hosts need root (mounts, namespaces)", "root", f"sudo .venv/bin/invoke {command}"
        )


@contextlib.contextmanager
def lock(say: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock: no other lab command of this checkout runs meanwhile.

    The kernel releases it when this process ends. Raises HostError after half an hour of waiting.
    """
    folder(STATE)
    folder(HOSTS)
    path = folder(RUN) / "lock"
    began, told = time.monotonic(), False
    with path.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told and time.monotonic() - began > 2:
                    say("waiting for another lab command to end")
                    told = True
                if time.monotonic() - began > LOCK_S:
                    raise HostError("lab", f"another lab command holds {path} for half an hour") from None
                time.sleep(0.1)
        yield
