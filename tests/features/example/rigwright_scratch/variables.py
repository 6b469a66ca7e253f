"""The inventory variable `scratch`: the folder, and how much room it must have."""

from __future__ import annotations

from msgspec import Struct

from rigwright.core.schema import AbsolutePath


class Scratch(Struct, frozen=True):
    """`least_gib`: room that is left for data."""

    path: AbsolutePath
    least_gib: int = 100


TYPES = {"scratch": Scratch}
