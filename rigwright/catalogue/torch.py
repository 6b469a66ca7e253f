"""PyTorch's wheels and the GPU architectures that they support (torch.yml)."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from functools import lru_cache

from rigwright.catalogue.gpus import Architecture
from rigwright.catalogue.loader import table
from rigwright.core.schema import Release


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
def torch_wheels() -> Wheels:
    """The table of torch.yml. Raises InputError."""
    return table("torch.yml", Wheels, "wheels")
