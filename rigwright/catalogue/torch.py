"""PyTorch's wheels and the GPU architectures that they support (torch.yml)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from rigwright.catalogue import loader
from rigwright.catalogue.gpus import Architecture
from rigwright.catalogue.loader import document, rows_sourced
from rigwright.core.schema import Release, convert


@dataclass(frozen=True)
class Wheel:
    """A kind of wheels (cu126): its CUDA version, its architectures, its last torch version (None: unknown)."""

    cuda: Release
    architectures: tuple[Architecture, ...]
    last: Release | None


@dataclass(frozen=True)
class Wheels:
    """All kinds of wheels by name, oldest CUDA first, with the date of the data."""

    as_of: datetime.date
    wheels: dict[str, Wheel]
    sources: dict[str, str] = field(repr=False)


@lru_cache(maxsize=1)
def _torch() -> Wheels:
    source = document(loader.FOLDER / "torch.yml")
    rows_sourced(source, "wheels")
    table: Wheels = convert(source, Wheels, source.where(), "")
    return table


def wheels() -> Mapping[str, Wheel]:
    """All kinds of wheels, oldest CUDA first. Raises InputError."""
    return _torch().wheels


def as_of() -> datetime.date:
    """The date of the data."""
    return _torch().as_of
