"""Functions that are called after a time, in one thread: the order, cancelling, and a fork."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref

import pytest

from rigwright.core.process import deadlines


def test_they_are_called_in_the_order_of_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[deadlines.Deadline] = []
    all_are = threading.Event()

    def call(due: deadlines.Deadline) -> None:
        called.append(due)
        if len(called) == 3:
            all_are.set()

    monkeypatch.setattr(deadlines, "LONGEST_WAIT_S", 0.2)
    monkeypatch.setattr(deadlines.Deadline, "_call", call)  # in one thread: those of functions do not keep an order
    own, now = deadlines._Deadlines(), time.monotonic()
    with monkeypatch.context() as one_moment:
        one_moment.setattr(deadlines.time, "monotonic", lambda: now)
        third, second, first = (own.add(seconds, print) for seconds in (0.3, 0.2, 0.05))
    assert all_are.wait(60)
    assert called == [first, second, third]


def test_one_that_is_cancelled_is_not_called_and_keeps_nothing() -> None:
    class Connection:
        def close(self) -> None:
            called.append("closed")

    called: list[str] = []
    connection = Connection()
    reference = weakref.ref(connection)
    deadlines.after(0.1, connection.close).cancel()
    del connection
    gc.collect()
    assert reference() is None
    time.sleep(0.3)
    assert called == []


def test_one_that_takes_long_does_not_delay_others() -> None:
    release, called = threading.Event(), threading.Event()
    deadlines.after(0.01, lambda: release.wait(60))
    deadlines.after(0.05, called.set)
    try:
        assert called.wait(60)
    finally:
        release.set()


def test_many_need_one_thread() -> None:
    before = threading.active_count()
    made = [deadlines.after(100, time.time) for _ in range(100)]
    assert threading.active_count() <= before + 1
    for deadline in made:
        deadline.cancel()


def test_a_fork_has_its_own() -> None:
    deadlines.after(100, time.time)
    child = os.fork()
    if child == 0:
        called = threading.Event()
        deadlines.after(0.01, called.set)
        os._exit(0 if called.wait(60) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_clock_that_was_wrong_once_delays_nothing_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests give this process another clock for a moment; a look at it must not count for hours."""
    monkeypatch.setattr(deadlines, "LONGEST_WAIT_S", 0.2)
    own = deadlines._Deadlines()
    with monkeypatch.context() as other_clock:
        other_clock.setattr(deadlines.time, "monotonic", lambda: 0.0)
        first = own.add(0.05, lambda: None)
        other_clock.setattr(deadlines.time, "monotonic", lambda: -1e6)  # the thread looks: not for a million seconds
        time.sleep(0.3)
    called = threading.Event()
    own.add(0.05, called.set)
    assert called.wait(60)
    first.cancel()
