"""PyTorch's wheels: which of them still have kernels for a GPU. torch.yml."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from rigwright.catalogue import reading
from rigwright.catalogue.gpus import Architecture
from rigwright.catalogue.reading import document, rows_sourced
from rigwright.typed import Release, convert


@dataclass(frozen=True)
class Wheel:
    """A line of wheels (cu126): its CUDA, the architectures it has kernels for, the last torch that comes so (None: not known)."""

    cuda: Release
    architectures: tuple[Architecture, ...]
    last: Release | None


@dataclass(frozen=True)
class Wheels:
    """All lines by name, oldest CUDA first, as they were on a day."""

    as_of: datetime.date
    wheels: dict[str, Wheel]
    sources: dict[str, str] = field(repr=False)


@lru_cache(maxsize=1)
def _torch() -> Wheels:
    found = document(reading.FOLDER / "torch.yml")
    rows_sourced(found, "wheels")
    made: Wheels = convert(found, Wheels, found.where(), "")
    return made


def wheels() -> Mapping[str, Wheel]:
    """Every line of wheels, oldest CUDA first. Raises InputError."""
    return _torch().wheels


def as_of() -> datetime.date:
    """The day on which the lines were so."""
    return _torch().as_of
