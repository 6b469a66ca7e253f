"""Calls functions after a time, with one waiting thread for all of them; each `threading.Timer` would have its own."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable

LONGEST_WAIT_S = 5.0
"""The longest time between two looks at the clock while a function waits."""


class Deadline:
    """A function that is called once, at a moment of the monotonic clock, unless it is cancelled before."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function: Callable[[], object] | None = function
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Drops the function: it is not called any more."""
        with self._lock:
            self._function = None

    def _call(self) -> None:
        with self._lock:
            function, self._function = self._function, None
        if function is not None:
            threading.Thread(target=function, daemon=True).start()  # so that no function waits for another


class _Deadlines:
    """The deadlines of this process. Its thread begins with the first one."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Deadline]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, seconds: float, function: Callable[[], object]) -> Deadline:
        """Has the function called after `seconds`."""
        made = Deadline(function)
        at = time.monotonic() + seconds
        with self._changed:
            heapq.heappush(self._waiting, (at, next(self._numbers), made))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="rigwright-deadlines")
                self._thread.start()
            elif self._waiting[0][2] is made:
                self._changed.notify()
        return made

    def _run(self) -> None:
        while True:
            with self._changed:
                wait_s = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(None if wait_s is None else min(wait_s, LONGEST_WAIT_S))
                    continue
                due = heapq.heappop(self._waiting)[2]
            due._call()


_deadlines = _Deadlines()
# A fork has no other threads, and their locks may be held.
os.register_at_fork(after_in_child=lambda: globals().update(_deadlines=_Deadlines()))


def after(seconds: float, function: Callable[[], object]) -> Deadline:
    """Has a function called in a thread of its own after `seconds`. A fork of this process does not call it."""
    return _deadlines.add(seconds, function)
