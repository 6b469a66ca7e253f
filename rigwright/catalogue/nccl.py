"""The libraries of the peer-to-peer test as wheels, pinned by hash: nccl.yml."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from rigwright.catalogue import reading
from rigwright.catalogue.reading import document, rows_sourced
from rigwright.typed import Release, convert


@dataclass(frozen=True)
class Wheel:
    """One wheel: version, size in MB (10^6), sha256. `quick`: the quick test needs it too."""

    version: Release
    mb: int
    sha256: str
    quick: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"sha256 {self.sha256!r}", "64 hexadecimal digits in lower case")


@dataclass(frozen=True)
class Libraries:
    """Wheels that belong together: for drivers from that branch on, and compute capabilities from the first to the second."""

    drivers_from: int
    capabilities: tuple[Release, ...]
    wheels: dict[str, Wheel]

    def needed(self, quick: bool) -> Mapping[str, Wheel]:
        """What that test needs of them."""
        return {name: one for name, one in self.wheels.items() if one.quick or not quick}

    def serves(self, driver: int, capabilities: Sequence[str]) -> bool:
        """Whether every GPU and the driver can run them."""
        low, high = (_number(text) for text in self.capabilities)
        return driver >= self.drivers_from and all(low <= _number(one) <= high for one in capabilities)


@dataclass(frozen=True)
class _Sets:
    sets: dict[str, Libraries]
    sources: dict[str, str] = field(repr=False)


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


@lru_cache(maxsize=1)
def sets() -> Mapping[str, Libraries]:
    """Every set by its name, in the order of preference. Raises InputError."""
    found = document(reading.FOLDER / "nccl.yml")
    rows_sourced(found, "sets")
    made: _Sets = convert(found, _Sets, found.where(), "")
    return made.sets


def libraries_for(driver: int, capabilities: Sequence[str]) -> Libraries | None:
    """The first set that a driver branch and all GPUs can run; None: there is none."""
    return next((one for one in sets().values() if one.serves(driver, capabilities)), None)
