"""Wheels with the libraries of the peer-to-peer test, pinned by hash (nccl_wheels.yml)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from rigwright.catalogue.loader import table
from rigwright.core.files.disk_cache import cached_on_disk
from rigwright.core.numbers import numbers
from rigwright.core.schema import Release


class Wheel(Struct, frozen=True):
    """One wheel: version, size in MB (10^6), sha256. `quick`: the quick test needs it too."""

    version: Release
    mb: int
    sha256: str
    quick: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"sha256 {self.sha256!r}", "64 hexadecimal digits in lower case")


class Libraries(Struct, frozen=True):
    """A set of wheels for drivers from a branch on and a range of compute capabilities."""

    drivers_from: int
    capabilities: tuple[Release, ...]
    wheels: dict[str, Wheel]

    def needed(self, quick: bool) -> Mapping[str, Wheel]:
        """The wheels that the quick or the full test needs."""
        return {name: wheel for name, wheel in self.wheels.items() if wheel.quick or not quick}

    def serves(self, driver: int, capabilities: Sequence[str]) -> bool:
        """Whether every GPU and the driver support them."""
        low, high = (numbers(text) for text in self.capabilities)
        return driver >= self.drivers_from and all(low <= numbers(capability) <= high for capability in capabilities)


class _Sets(Struct, frozen=True):
    sets: dict[str, Libraries]
    sources: dict[str, str]


@cached_on_disk
def sets() -> Mapping[str, Libraries]:
    """All sets by name, in order of preference. Raises InputError."""
    return table("nccl_wheels.yml", _Sets, "sets").sets


def libraries_for(driver: int, capabilities: Sequence[str]) -> Libraries | None:
    """The first set that the driver branch and all GPUs support, or None."""
    return next((libraries for libraries in sets().values() if libraries.serves(driver, capabilities)), None)
