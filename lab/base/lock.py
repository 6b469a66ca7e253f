"""The lock that lets only one lab command at a time change this machine, and the check for root."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lab.base.paths import HOSTS, RUN, STATE, folder
from rigwright.core.errors import HostError, UsageError

LOCK_S = 1800.0
CACHE_LOCK_S = 3600.0


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
    with _held(path, LOCK_S, "another lab command to end", say):
        yield


@contextlib.contextmanager
def cache_lock(cache: Path, name: str, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of one part of a cache that several checkouts use: only one of them builds it.

    The kernel releases it when this process ends. Raises HostError after an hour of waiting.
    """
    with _held(cache / f".{name}.lock", CACHE_LOCK_S, f"another program that builds {name}", say):
        yield


@contextlib.contextmanager
def _held(path: Path, most_s: float, awaited: str, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of a file, and says what it waits for. Raises HostError after `most_s` seconds of waiting."""
    began, told = time.monotonic(), False
    with path.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told and time.monotonic() - began > 2:
                    say(f"waiting for {awaited}")
                    told = True
                if time.monotonic() - began > most_s:
                    found = f"{path} is locked for {most_s / 60:.0f} minutes: waiting for {awaited}"
                    raise HostError("lab", found, "a free lock", f"sudo fuser -v {path}; end that program") from None
                time.sleep(0.1)
        yield
