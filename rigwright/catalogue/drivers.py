"""Driver branches with their releases, CUDA toolkits, and NVIDIA's package repository: drivers.yml and cuda.yml."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from rigwright.catalogue.gpus import Architecture
from rigwright.catalogue.loader import table
from rigwright.catalogue.releases import published_drivers
from rigwright.core.files.disk_cache import cached_on_disk
from rigwright.core.numbers import numbers
from rigwright.core.schema import Branch as BranchName, Release

Kind = Literal["long-term support", "production", "new feature", "unknown"]


class Branch(Struct, frozen=True):
    """A driver branch: its kind, its releases (oldest first), the highest CUDA version it supports (None: unknown), and
    its end of life. `last_for`: architectures that no newer branch supports; `notes`: reported problems.

    `desktop`: the releases that NVIDIA's repository for servers does not have. `builds_to_kernel`: by release, oldest
    first, the newest kernel (6.18) for which its module builds as NVIDIA ships it.
    """

    cuda: Release | None
    eol: datetime.date | None
    kind: Kind
    versions: tuple[str, ...]
    desktop: tuple[str, ...] = ()
    builds_to_kernel: dict[Release, Release] = field(default_factory=dict)
    last_for: tuple[Architecture, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = ""

    def support(self, today: datetime.date) -> str:
        """The kind of the branch, and until when it is supported. NVIDIA publishes no end of a new-feature branch, so
        `eol` is a convention there."""
        new = self.kind == "new feature"
        if self.eol is None:
            return f"{self.kind}, no published end of support" if new else self.kind
        convention = " (a convention: NVIDIA published none)" if new else ""
        return f"{self.kind}, support {'ended on' if self.eol < today else 'until'} {self.eol}{convention}"


class Toolkit(Struct, frozen=True):
    """A CUDA toolkit: the driver released with it, and the architectures that it no longer supports."""

    shipped_driver: str
    dropped: tuple[Architecture, ...] = ()


class RepositoryKey(Struct, frozen=True):
    """The key that signs a repository: the name of its file there, and its fingerprint (40 hexadecimal digits)."""

    file: str
    fingerprint: str

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9A-F]{40}", self.fingerprint):
            raise ValueError(f"fingerprint {self.fingerprint!r}", "40 hexadecimal digits in upper case")


class CudaRepository(Struct, frozen=True):
    """NVIDIA's repositories. `url` contains {distribution} (ubuntu2204). `keys`: where it is not `key`."""

    url: str
    key: RepositoryKey
    keys: dict[str, RepositoryKey]

    def key_of(self, distribution: str) -> RepositoryKey:
        """The key that signs the repository of a distribution (ubuntu2204)."""
        return self.keys.get(distribution, self.key)


class Drivers(Struct, frozen=True):
    """The driver branches. `open_module_from`: the first branch with an open kernel module.
    `open_module_preferred_from`: the first branch in which NVIDIA prefers it for GPUs that run both.
    `open_module_only_from`: the first without another.

    `application_clocks_until`: the last branch whose GPUs have application clocks (-ac). `sources`: by key of a branch.
    """

    branches: dict[BranchName, Branch]
    open_module_from: int
    open_module_preferred_from: int
    open_module_only_from: int
    application_clocks_until: int
    sources: dict[str, str]


class CudaTable(Struct, frozen=True):
    """Toolkits, NVIDIA's repository, and the oldest driver of each major version of CUDA (`family_minimum`)."""

    repository: CudaRepository
    toolkits: dict[Release, Toolkit]
    family_minimum: dict[str, str]
    sources: dict[str, str]


@cached_on_disk
def driver_table() -> Drivers:
    """The table of drivers.yml. Raises InputError."""
    return table("drivers.yml", Drivers, "branches")


@cached_on_disk
def cuda_table() -> CudaTable:
    """The table of cuda.yml. Raises InputError."""
    return table("cuda.yml", CudaTable, "toolkits")


@cached_on_disk
def branches() -> Mapping[str, Branch]:
    """All driver branches by name, oldest first. Raises InputError.

    The releases are those of drivers.yml and those that NVIDIA publishes (releases.csv). A newer branch that only
    releases.csv has is there too, without an end of life and a CUDA version.
    """
    published = published_drivers()
    described: dict[str, Branch] = {str(name): branch for name, branch in driver_table().branches.items()}
    newest = max(described)
    for name, entries in published.items():
        if name > newest:
            kinds: list[Kind] = [entry.kind for entry in entries.values() if entry.kind]
            described[name] = Branch(None, None, kinds[0] if kinds else "unknown", tuple(entries))
    return {
        name: replace(
            branch, name=name, versions=tuple(sorted({*branch.versions, *published.get(name, ())}, key=numbers))
        )
        for name, branch in sorted(described.items())
    }


def toolkits() -> Mapping[str, Toolkit]:
    """CUDA toolkits by version (12.2), oldest first. Raises InputError."""
    return {str(name): toolkit for name, toolkit in cuda_table().toolkits.items()}


def family_minimum(toolkit: str) -> str:
    """The oldest driver for a toolkit by minor-version compatibility (without PTX JIT), or the one released with it."""
    minimum = cuda_table().family_minimum.get(toolkit.split(".")[0])
    known = cuda_table().toolkits.get(Release(toolkit))
    return minimum or (known.shipped_driver if known else "0")
