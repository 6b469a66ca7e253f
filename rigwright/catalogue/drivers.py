"""Driver branches with their releases, CUDA toolkits, and NVIDIA's package repository: drivers.yml and cuda.yml."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from rigwright.catalogue import reading
from rigwright.catalogue.gpus import Architecture
from rigwright.catalogue.reading import document, rows_sourced
from rigwright.typed import Branch as BranchName
from rigwright.typed import Release, convert

Kind = Literal["long-term support", "production", "new feature", "unknown"]


@dataclass(frozen=True)
class Branch:
    """A driver branch: its kind, its releases, oldest first, the highest CUDA its driver speaks (None: not known), and
    its end of life. `last_for`: architectures that no newer branch drives; `notes`: what people met on it."""

    cuda: Release | None
    eol: datetime.date | None
    kind: Kind
    versions: tuple[str, ...]
    last_for: tuple[Architecture, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit: the oldest driver it runs on, and the architectures it no longer has code for."""

    minimum_driver: str
    dropped: tuple[Architecture, ...] = ()


@dataclass(frozen=True)
class CudaRepository:
    """NVIDIA's repository: `url` holds {distribution} (ubuntu2204)."""

    url: str
    key: str
    fingerprint: str


@dataclass(frozen=True)
class _Drivers:
    branches: dict[BranchName, Branch]
    sources: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class _Cuda:
    repository: CudaRepository
    toolkits: dict[Release, Toolkit]
    sources: dict[str, str] = field(repr=False)


@lru_cache(maxsize=1)
def branches() -> Mapping[str, Branch]:
    """Every driver branch by its name, oldest first. Raises InputError."""
    found = document(reading.FOLDER / "drivers.yml")
    rows_sourced(found, "branches")
    made: _Drivers = convert(found, _Drivers, found.where(), "")
    return {
        name: Branch(one.cuda, one.eol, one.kind, one.versions, one.last_for, one.notes, name)
        for name, one in made.branches.items()
    }


@lru_cache(maxsize=1)
def _cuda() -> _Cuda:
    found = document(reading.FOLDER / "cuda.yml")
    rows_sourced(found, "toolkits")
    made: _Cuda = convert(found, _Cuda, found.where(), "")
    return made


def cuda_repository() -> CudaRepository:
    """NVIDIA's own repository."""
    return _cuda().repository


def toolkits() -> Mapping[str, Toolkit]:
    """CUDA toolkits by version (12.2), oldest first. Raises InputError."""
    return {str(name): one for name, one in _cuda().toolkits.items()}
