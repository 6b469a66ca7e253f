"""Values of facts as JSON types."""

from __future__ import annotations

import dataclasses
import datetime
import math
from array import array
from typing import Any

from rigwright.core.secrets import Secret
from rigwright.facts import Unavailable, Unreadable


def plain(value: Any) -> Any:
    """Converts the value of a fact to JSON types; a secret becomes `(secret)`, NaN in a column of numbers None."""
    if isinstance(value, (Unavailable, Unreadable)):
        return {"unavailable": str(value)}
    if isinstance(value, Secret):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key.name: plain(getattr(value, key.name)) for key in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, array):
        return [None if math.isnan(number) else number for number in value]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value
