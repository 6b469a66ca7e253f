"""The end of security updates of distributions (distributions.yml)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from msgspec import Struct

from rigwright.catalogue.loader import table
from rigwright.core.files.disk_cache import cached_on_disk


class Distribution(Struct, frozen=True):
    """A release. `until`: the last day of updates for everybody; `further`: that of the updates named by `by` (or
    None).

    `supported`: rigwright provisions it."""

    title: str
    until: datetime.date
    further: datetime.date | None = None
    by: str = ""
    supported: bool = False


class Distributions(Struct, frozen=True):
    """All releases by ID and VERSION_ID of os-release: `ubuntu 22.04`, and the source of each key."""

    releases: dict[str, Distribution]
    sources: dict[str, str]


@cached_on_disk
def distribution_table() -> Distributions:
    """The table of distributions.yml. Raises InputError."""
    return table("distributions.yml", Distributions, "releases")


def all_distributions() -> Mapping[str, Distribution]:
    """All releases by ID and VERSION_ID of os-release. Raises InputError."""
    return distribution_table().releases


def supported_releases() -> dict[str, list[str]]:
    """The releases that rigwright provisions: VERSION_IDs by ID of os-release. Raises InputError."""
    found: dict[str, list[str]] = {}
    for key, release in all_distributions().items():
        if release.supported:
            name, _, version = key.partition(" ")
            found.setdefault(name, []).append(version)
    return found
