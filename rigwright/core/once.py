"""Results that are computed once, also when many threads ask for them at the same moment."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class once(Generic[T]):  # a decorator, as functools.cached_property
    """A function without arguments that computes its result once; after an error the next call tries again.

    A call while another thread computes waits for the result; with functools.cache each thread would read the file.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._results: list[T] = []
        self._lock = threading.RLock()
        functools.update_wrapper(self, function)

    def __call__(self) -> T:
        """Returns the result."""
        if not self._results:
            with self._lock:
                if not self._results:
                    self._results.append(self._function())
        return self._results[0]

    def cache_clear(self) -> None:
        """Forgets the result."""
        with self._lock:
            self._results = []
