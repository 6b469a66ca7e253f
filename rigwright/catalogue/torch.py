"""PyTorch's wheels and the GPU architectures that they support (torch.yml)."""

from __future__ import annotations

import datetime
from collections.abc import Collection

from msgspec import Struct

from rigwright.catalogue.gpus import Architecture
from rigwright.catalogue.loader import table
from rigwright.core.files.disk_cache import cached_on_disk
from rigwright.core.schema import Release


class Wheel(Struct, frozen=True):
    """A kind of wheels (cu126): its CUDA version, its first and last torch version (None: still built).

    `architectures`: by the first torch version that has them, oldest first.
    """

    cuda: Release
    first: Release
    last: Release | None
    architectures: dict[Release, tuple[Architecture, ...]]

    def last_for(self, wanted: Collection[Architecture]) -> str | None:
        """The last torch version with kernels for all these architectures: a minor version; None if it is still built.

        Raises LookupError when none has them.
        """
        sets = list(self.architectures.items())
        fitting = [at for at, (_, architectures) in enumerate(sets) if set(wanted) <= set(architectures)]
        if not fitting:
            raise LookupError("no torch version of these wheels has kernels for all of them")
        if fitting[-1] == len(sets) - 1:
            return self.last
        major, minor = sets[fitting[-1] + 1][0].split(".")[:2]
        return f"{major}.{int(minor) - 1}"


class Wheels(Struct, frozen=True):
    """All kinds of wheels by name, oldest CUDA first, with the date of the data."""

    as_of: datetime.date
    wheels: dict[str, Wheel]
    sources: dict[str, str]


@cached_on_disk
def torch_wheels() -> Wheels:
    """The table of torch.yml. Raises InputError."""
    return table("torch.yml", Wheels, "wheels")
