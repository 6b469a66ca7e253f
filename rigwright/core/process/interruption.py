"""Ctrl-C, SIGTERM and SIGHUP: what happens then, and the end of the process."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TOGETHER_S = 2.0
"""A SIGTERM or SIGHUP within this time after another signal is the same request. Each Ctrl-C counts."""
LEFT_BEHIND = "rigwright-host"
"""The beginning of the names of threads that work on a host."""

_last = float("-inf")


@contextlib.contextmanager
def handled(act: Callable[[int], None]) -> Iterator[None]:
    """Calls `act` with the number of each of SIGNALS. One that this process ignores, as under nohup, stays ignored.

    Does nothing outside the main thread, which alone gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, _frame: object) -> None:
        global _last
        now, before, _last = time.monotonic(), _last, time.monotonic()
        if number == signal.SIGINT or now - before > TOGETHER_S:
            act(number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    try:
        for number in ours:
            signal.signal(number, on_signal)
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def raised() -> contextlib.AbstractContextManager[None]:
    """Inside it each of the signals raises KeyboardInterrupt, as Ctrl-C does."""

    def act(_number: int) -> None:
        raise KeyboardInterrupt

    return handled(act)


def held() -> contextlib.AbstractContextManager[None]:
    """Inside it the first signal is ignored, because a run records its end; a second one ends the process."""
    counter = itertools.count()

    def act(number: int) -> None:
        if next(counter):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    return handled(act)


def end_now_if_left_behind(code: int) -> None:
    """Ends the process with this code if a thread still works on a host: the interpreter would wait for the thread."""
    if not any(thread.name.startswith(LEFT_BEHIND) for thread in threading.enumerate()):
        return
    import termios

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(termios.error, OSError):  # such a thread may have turned the echo off for a password
        attributes = termios.tcgetattr(0)
        attributes[3] |= termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, attributes)
    os._exit(code)
