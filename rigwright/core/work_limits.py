"""Limits of the work that one evaluation of templates may do: steps, characters, and processor time of its thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

MOST_STEPS = 300_000
"""The most turns of loops, calls and visited values of one evaluation."""
MOST_CHARACTERS = 16 << 20
"""The most characters, and items of lists, that one evaluation may make."""
MOST_S = 10.0
"""The most processor time of one evaluation, seconds."""


class LimitExceeded(Exception):
    """An evaluation exceeds a limit."""


class _Work(threading.local):
    """The work of the evaluation that runs in this thread."""

    running = False
    steps = 0
    characters = 0
    ends_s = 0.0


_work = _Work()


@contextlib.contextmanager
def counted() -> Iterator[None]:
    """Counts the work of an evaluation, and of those that it starts, against the limits."""
    if _work.running:
        yield
        return
    _work.running, _work.steps, _work.characters = True, 0, 0
    _work.ends_s = time.thread_time() + MOST_S
    try:
        yield
    finally:
        _work.running = False


def spend(steps: int = 1, characters: int = 0) -> None:
    """Adds to the work of this thread's evaluation, if one runs. Raises LimitExceeded above a limit."""
    if not _work.running:
        return
    _work.steps += steps
    _work.characters += characters
    if _work.steps > MOST_STEPS:
        raise LimitExceeded(f"more than {MOST_STEPS} steps")
    if _work.characters > MOST_CHARACTERS:
        raise LimitExceeded(f"a text or list of more than {MOST_CHARACTERS >> 20} million characters or items")
    if time.thread_time() > _work.ends_s:
        raise LimitExceeded(f"more than {MOST_S:g} s of processor time")
