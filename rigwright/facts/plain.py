"""Values of facts as JSON types."""

from __future__ import annotations

import dataclasses
import datetime
import math
from array import array
from typing import Any

from rigwright.core.secrets import Secret
from rigwright.facts import Unavailable, Unreadable

_PLAIN = frozenset((str, int, float, bool, type(None)))


_known: dict[type, tuple[str, ...]] = {}


def _fields(kind: type) -> tuple[str, ...]:
    """The names of the fields of a dataclass; () for another type. Looked up once for each type."""
    names = _known.get(kind)
    if names is None:
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        names = _known[kind] = tuple(field.name for field in fields)
    return names


def plain(value: Any) -> Any:
    """Converts the value of a fact to JSON types; a secret becomes `(secret)`, NaN in a column of numbers None."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (Unavailable, Unreadable)):
        return {"unavailable": str(value)}
    if isinstance(value, Secret):
        return str(value)
    if names := _fields(type(value)):
        own = ((name, getattr(value, name)) for name in names)
        return {name: item if type(item) in _PLAIN else plain(item) for name, item in own}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {}
    if isinstance(value, dict):
        return {str(key): item if type(item) in _PLAIN else plain(item) for key, item in value.items()}
    if isinstance(value, array):
        return [None if math.isnan(number) else number for number in value]
    if isinstance(value, (list, tuple)):
        return [item if type(item) in _PLAIN else plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value
