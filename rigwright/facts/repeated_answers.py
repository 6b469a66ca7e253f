"""Keeps the parsed values of answers that several hosts give, so that an equal answer is parsed once.

A value is kept when its answer comes a second time, and only if it is immutable, because several hosts share it. The
number and size of kept values are limited, so a hostile host can only make other answers be parsed again.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NoReturn, TypeVar

from msgspec import Struct

from rigwright.core.command import Result

MOST_SEEN = 8192
"""Digests of answers that came once."""
MOST_KEPT = 2048
MOST_BYTES = 4 << 20
"""The length of all answers whose values are kept; a value takes several times as much memory."""
_SHORT = 64
"""The bytes up to which an answer is its own key, which is faster than a digest."""
_Key = tuple[Hashable, bytes | tuple[int, bool, bytes, bytes]]
K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that several hosts share: it raises TypeError for a change."""

    def _refuse(self, *_values: Any, **_named: Any) -> NoReturn:
        raise TypeError("this dict is shared and cannot be changed; make a copy: dict(it)")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[dict[Any, Any]], tuple[dict[K, V]]]:
        return dict, (dict(self),)


class RepeatedAnswers:
    """The values of answers that came more than once. Threads may share it."""

    def __init__(self, most_seen: int = MOST_SEEN, most_kept: int = MOST_KEPT, most_bytes: int = MOST_BYTES) -> None:
        self._most_seen, self._most_kept, self._most_bytes = most_seen, most_kept, most_bytes
        self._seen: OrderedDict[_Key, None] = OrderedDict()
        self._kept: OrderedDict[_Key, tuple[Any, int]] = OrderedDict()  # the value, and the bytes of the answer
        self._bytes = 0
        self._lock = threading.Lock()

    def parsed(self, question: Hashable, parse: Callable[[Result], Any], result: Result) -> Any:
        """The parsed answer to a question. Raises what the parser raises; errors are not kept."""
        size = len(result.stdout) + len(result.stderr)
        key: _Key = question, (result.code, result.cut, result.stdout, result.stderr)
        if size > _SHORT:
            head = b"%d %d %d " % (result.code, result.cut, len(result.stdout))
            key = question, hashlib.sha256(b"".join((head, result.stdout, result.stderr))).digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
            again = key in self._seen
            self._seen[key] = None
            self._seen.move_to_end(key)
            if len(self._seen) > self._most_seen:
                self._seen.popitem(last=False)
        value = parse(result)
        if again and type(value) is dict:
            value = FrozenDict(value)
        if not again or size > self._most_bytes or not immutable(value):
            return value
        with self._lock:
            if key in self._kept:  # another thread was first
                return self._kept[key][0]
            self._kept[key] = value, size
            self._bytes += size
            while len(self._kept) > self._most_kept or self._bytes > self._most_bytes:
                self._bytes -= self._kept.popitem(last=False)[1][1]
        return value


_SIMPLE = (str, bytes, int, float, type(None), datetime.date, datetime.timedelta, enum.Enum, range)


def immutable(value: Any) -> bool:
    """Whether a value and everything in it is of an immutable type."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(immutable, value))
    if isinstance(value, FrozenDict):
        return all(map(immutable, value.values()))
    if isinstance(value, Struct):
        names = value.__struct_fields__ if value.__struct_config__.frozen else ()
        return value.__struct_config__.frozen and all(immutable(getattr(value, name)) for name in names)
    return isinstance(value, _SIMPLE)
