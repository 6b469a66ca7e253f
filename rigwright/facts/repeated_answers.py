"""Equal answers of hosts are parsed once. A parser is a pure function of the answer, so the value is the same for each
host.

An answer is kept when it came a second time; most answers of a single host never do. Only values that cannot be changed
are kept, because several hosts use the same one. Number and size of what is kept are bounded: a host that answers
nonsense can only make others parse again.
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
"""Answers that are remembered by their digest."""
MOST_KEPT = 2048
MOST_BYTES = 4 << 20
"""The length of all answers whose values are kept; a value takes several times as much memory."""

_SHORT = 64
"""Answers of so many bytes are compared by themselves, which takes less time than their digest."""
_Answer = bytes | tuple[int, bool, bytes, bytes]
_Key = tuple[Hashable, _Answer]


K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict for values that several hosts use: it raises TypeError when it is to be changed."""

    def _refuse(self, *_values: Any, **_named: Any) -> NoReturn:
        raise TypeError("this dict is shared and cannot be changed; make a copy: dict(it)")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[dict[Any, Any]], tuple[dict[K, V]]]:
        return dict, (dict(self),)


class _Kept(Struct, frozen=True):
    value: Any
    size: int


class RepeatedAnswers:
    """The values of answers that came more than once. For use by all threads."""

    def __init__(self, most_seen: int = MOST_SEEN, most_kept: int = MOST_KEPT, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_seen, most_kept, most_bytes
        self._seen: OrderedDict[_Key, None] = OrderedDict()
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def parsed(self, asked: Hashable, parse: Callable[[Result], Any], result: Result) -> Any:
        """What the parser of what was asked makes of the answer. Raises what the parser raises; errors are not kept."""
        key = asked, _digest(result)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept.value
            again = key in self._seen
            self._seen[key] = None
            self._seen.move_to_end(key)
            if len(self._seen) > self._most[0]:
                self._seen.popitem(last=False)
        value = parse(result)
        if again and type(value) is dict:
            value = FrozenDict(value)
        if again and unchangeable(value):
            with self._lock:
                return self._keep(key, value, len(result.stdout) + len(result.stderr))
        return value

    def _keep(self, key: _Key, value: Any, size: int) -> Any:
        _, most_kept, most_bytes = self._most
        if key in self._kept:  # another thread was first
            return self._kept[key].value
        if size > most_bytes:
            return value
        self._kept[key] = _Kept(value, size)
        self._bytes += size
        while len(self._kept) > most_kept or self._bytes > most_bytes:
            self._bytes -= self._kept.popitem(last=False)[1].size
        return value


def _digest(result: Result) -> _Answer:
    """What is equal for equal answers, and in practice for no others."""
    if len(result.stdout) + len(result.stderr) <= _SHORT:
        return result.code, result.cut, result.stdout, result.stderr
    head = b"%d %d %d " % (result.code, result.cut, len(result.stdout))
    return hashlib.sha256(b"".join((head, result.stdout, result.stderr))).digest()


_SIMPLE = (str, bytes, int, float, type(None), datetime.date, datetime.timedelta, enum.Enum, range)


def unchangeable(value: Any) -> bool:
    """Whether a value, and all that it contains, is of a type that has no way to change it."""
    if isinstance(value, _SIMPLE):
        return True
    if isinstance(value, (tuple, frozenset)):
        return all(map(unchangeable, value))
    if isinstance(value, FrozenDict):
        return all(map(unchangeable, value.values()))
    if isinstance(value, Struct):
        return value.__struct_config__.frozen and all(
            unchangeable(getattr(value, name)) for name in value.__struct_fields__
        )
    return False
