"""A result that is computed once."""

from __future__ import annotations

import threading
import time

import pytest

from rigwright.core.once import once


def test_many_threads_compute_it_once() -> None:
    calls = []

    @once
    def slow() -> object:
        """Is slow."""
        calls.append(1)
        time.sleep(0.05)
        return object()

    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(slow())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(calls), len(set(map(id, found))), len(found)) == (1, 1, 16)
    assert slow.__doc__ == "Is slow."
    slow.cache_clear()
    assert slow() is not found[0]
    assert len(calls) == 2


def test_an_error_is_not_kept() -> None:
    calls = []

    @once
    def fails() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("first")
        return 7

    with pytest.raises(ValueError, match="first"):
        fails()
    assert (fails(), fails(), len(calls)) == (7, 7, 2)
