"""JSON values as types."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def typed(value: object, kind: type[T]) -> T:
    """A value that a JSON text was read to, as a type.

    Raises ValueError for a value of another type, for a missing or unknown key, also where the field has a default, and
    for what this program would not write: a number that is not finite, text that is not Unicode.
    """
    made = msgspec.convert(value, kind)
    if msgspec.json.decode(msgspec.json.encode(made)) != value:
        raise ValueError(f"other keys or numbers than those of {getattr(kind, '__name__', kind)}")
    return made
