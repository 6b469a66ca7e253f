"""The end of security updates of distributions (distributions.yml)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from rigwright.catalogue import loader
from rigwright.catalogue.loader import document, rows_sourced
from rigwright.core.schema import convert


@dataclass(frozen=True)
class Distribution:
    """A release. `until`: the last day of updates for everybody; `further`: that of the updates named by `by` (or None)."""

    title: str
    until: datetime.date
    further: datetime.date | None = None
    by: str = ""


@dataclass(frozen=True)
class _Distributions:
    releases: dict[str, Distribution]
    sources: dict[str, str] = field(repr=False)


@lru_cache(maxsize=1)
def _distributions() -> _Distributions:
    source = document(loader.FOLDER / "distributions.yml")
    rows_sourced(source, "releases")
    table: _Distributions = convert(source, _Distributions, source.where(), "")
    return table


def distributions() -> Mapping[str, Distribution]:
    """All releases by ID and VERSION_ID of os-release: `ubuntu 22.04`. Raises InputError."""
    return _distributions().releases


def distribution_source() -> str:
    """The source of the dates."""
    return _distributions().sources["until"]
