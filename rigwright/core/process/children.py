"""Programs that this process starts on this machine and waits for; they end when the run is stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence

_running: set[subprocess.Popen[str]] = set()
_starting = threading.Lock()


def run(argv: Sequence[str], timeout_s: float, folder: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program with an empty stdin; returns its exit code and output. Ctrl-C at the terminal does not reach it.

    `folder`: its working directory. Raises OSError, and subprocess.TimeoutExpired after it has ended the program and
    those that it started.
    """
    pipe = subprocess.PIPE
    with _starting:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True, cwd=folder
        )
        _running.add(child)
    try:
        out, err = child.communicate(timeout=timeout_s)
    finally:
        _end(child, signal.SIGKILL)
        _running.discard(child)
    return subprocess.CompletedProcess(argv, child.returncode, out, err)


def end_all() -> None:
    """Ends all programs that run; those who wait for them get a negative exit code."""
    with _starting:
        running = list(_running)
    for child in running:
        _end(child, signal.SIGTERM)


def _end(child: subprocess.Popen[str], number: int) -> None:
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
