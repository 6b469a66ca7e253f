"""Driver branches with their releases, CUDA toolkits, and NVIDIA's package repository: drivers.yml and cuda.yml."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from rigwright.catalogue import loader
from rigwright.catalogue.gpus import Architecture
from rigwright.catalogue.loader import document, rows_sourced
from rigwright.core.schema import Branch as BranchName
from rigwright.core.schema import Release, convert

Kind = Literal["long-term support", "production", "new feature", "unknown"]


@dataclass(frozen=True)
class Branch:
    """A driver branch: its kind, its releases (oldest first), the highest CUDA version it supports (None: unknown), and
    its end of life. `last_for`: architectures that no newer branch supports; `notes`: reported problems."""

    cuda: Release | None
    eol: datetime.date | None
    kind: Kind
    versions: tuple[str, ...]
    last_for: tuple[Architecture, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit: the driver released with it, and the architectures that it no longer supports."""

    shipped_driver: str
    dropped: tuple[Architecture, ...] = ()


@dataclass(frozen=True)
class CudaRepository:
    """NVIDIA's repository. `url` contains {distribution} (ubuntu2204)."""

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
    source = document(loader.FOLDER / "drivers.yml")
    rows_sourced(source, "branches")
    table: _Drivers = convert(source, _Drivers, source.where(), "")
    return table


@lru_cache(maxsize=1)
def branches() -> Mapping[str, Branch]:
    """All driver branches by name, oldest first. Raises InputError."""
    return {name: replace(branch, name=name) for name, branch in _drivers().branches.items()}


def open_module_from() -> int:
    """The first branch with an open kernel module."""
    return _drivers().open_module_from


def application_clocks_until() -> int:
    """The last branch whose GPUs have application clocks (-ac)."""
    return _drivers().application_clocks_until


def branch_source() -> str:
    """The source of the branches' dates."""
    return _drivers().sources["eol"]


@lru_cache(maxsize=1)
def _cuda() -> _Cuda:
    source = document(loader.FOLDER / "cuda.yml")
    rows_sourced(source, "toolkits")
    table: _Cuda = convert(source, _Cuda, source.where(), "")
    return table


def cuda_repository() -> CudaRepository:
    """NVIDIA's own repository."""
    return _cuda().repository


def toolkits() -> Mapping[str, Toolkit]:
    """CUDA toolkits by version (12.2), oldest first. Raises InputError."""
    return {str(name): toolkit for name, toolkit in _cuda().toolkits.items()}


def family_minimum(toolkit: str) -> str:
    """The oldest driver that supports a toolkit by minor-version compatibility (without PTX JIT).

    If it is unknown, the driver that was released with the toolkit.
    """
    minimum = _cuda().family_minimum.get(toolkit.split(".")[0])
    known = _cuda().toolkits.get(Release(toolkit))
    return minimum or (known.shipped_driver if known else "0")


def toolkit_source() -> str:
    """The source of the toolkits' drivers."""
    return _cuda().sources["shipped_driver"]


def dropped_source() -> str:
    """The source of the architectures that toolkits no longer support."""
    return _cuda().sources["dropped"]
