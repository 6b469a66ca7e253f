"""Values of facts as JSON types."""

from __future__ import annotations

import datetime
import math
from array import array
from typing import Any

from msgspec import Struct

from rigwright.core.secrets import Secret
from rigwright.facts import Unavailable, Unreadable

_PLAIN = frozenset((str, int, float, bool, type(None)))


def plain(value: Any) -> Any:
    """Converts the value of a fact to JSON types; a secret becomes `(secret)`, NaN in a column of numbers None."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (Unavailable, Unreadable)):
        return {"unavailable": str(value)}
    if isinstance(value, Secret):
        return str(value)
    if isinstance(value, Struct):
        own = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: item if type(item) in _PLAIN else plain(item) for name, item in own}
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
