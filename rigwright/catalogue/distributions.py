"""Until when distributions get security updates: distributions.yml."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from rigwright.catalogue import reading
from rigwright.catalogue.reading import document, rows_sourced
from rigwright.typed import convert


@dataclass(frozen=True)
class Distribution:
    """A release: the last day of updates for everybody, and (None: there is no such thing) of those by what `by` names."""

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
    found = document(reading.FOLDER / "distributions.yml")
    rows_sourced(found, "releases")
    made: _Distributions = convert(found, _Distributions, found.where(), "")
    return made


def distributions() -> Mapping[str, Distribution]:
    """Every release by ID and VERSION_ID of os-release: `ubuntu 22.04`. Raises InputError."""
    return _distributions().releases


def distribution_source() -> str:
    """Where the dates are from."""
    return _distributions().sources["until"]
