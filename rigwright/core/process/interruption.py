"""Ctrl-C, SIGTERM and SIGHUP: what happens then, and the end of the process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TOGETHER_S = 2.0
"""A SIGTERM or SIGHUP that follows another signal within this time is the same request: who ends a session or a service
often sends several at once. Each Ctrl-C counts."""
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
    return handled(_raise)


def _raise(_number: int) -> None:
    raise KeyboardInterrupt


def held() -> contextlib.AbstractContextManager[None]:
    """Inside it the first signal is ignored, because a run records its end; a second one ends the process."""
    seen: list[int] = []

    def act(number: int) -> None:
        seen.append(number)
        if len(seen) > 1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    return handled(act)


def end_now_if_left_behind(code: int) -> None:
    """Ends the process with this code if a thread still works on a host that was left behind: the interpreter would
    wait for it."""
    if any(thread.name.startswith(LEFT_BEHIND) for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        _echo_on()
        os._exit(code)


def _echo_on() -> None:
    """Lets the terminal show what is typed; a thread that was left behind may be asking for a password."""
    import termios

    with contextlib.suppress(termios.error, OSError):
        attributes = termios.tcgetattr(0)
        attributes[3] |= termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, attributes)
