"""Driver branches with their releases, CUDA toolkits, and NVIDIA's package repository: drivers.yml and cuda.yml."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    """A CUDA toolkit: the driver it came with, and the architectures it no longer has code for."""

    shipped_driver: str
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
    open_module_from: int
    application_clocks_until: int
    sources: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class _Cuda:
    repository: CudaRepository
    toolkits: dict[Release, Toolkit]
    family_minimum: dict[str, str]
    sources: dict[str, str] = field(repr=False)


@lru_cache(maxsize=1)
def _drivers() -> _Drivers:
    found = document(reading.FOLDER / "drivers.yml")
    rows_sourced(found, "branches")
    made: _Drivers = convert(found, _Drivers, found.where(), "")
    return made


@lru_cache(maxsize=1)
def branches() -> Mapping[str, Branch]:
    """Every driver branch by its name, oldest first. Raises InputError."""
    return {name: replace(one, name=name) for name, one in _drivers().branches.items()}


def open_module_from() -> int:
    """The first branch with an open kernel module."""
    return _drivers().open_module_from


def application_clocks_until() -> int:
    """The last branch whose GPUs have application clocks (-ac)."""
    return _drivers().application_clocks_until


def branch_source() -> str:
    """Where the branches' dates are from."""
    return _drivers().sources["eol"]


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


def family_minimum(toolkit: str) -> str:
    """The oldest driver that runs a toolkit and all others of its major version, less PTX JIT; its own where none is known."""
    found = _cuda().family_minimum.get(toolkit.split(".")[0])
    known = _cuda().toolkits.get(Release(toolkit))
    return found or (known.shipped_driver if known else "0")


def toolkit_source() -> str:
    """Where the toolkits' drivers are from."""
    return _cuda().sources["shipped_driver"]


def dropped_source() -> str:
    """Where it is from that toolkits have no code for an architecture any more."""
    return _cuda().sources["dropped"]
