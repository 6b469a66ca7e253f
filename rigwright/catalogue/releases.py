"""Releases of the driver and of CUDA as NVIDIA publishes them: releases.csv, which scripts/catalogue-update writes."""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from rigwright.catalogue import loader
from rigwright.core.errors import InputError
from rigwright.core.files import shipped_files
from rigwright.core.files.disk_cache import cached_on_disk
from rigwright.core.numbers import numbers
from rigwright.core.yaml_source import text as file_text

FILE = "releases.csv"
SHOWN = f"catalogue/{FILE}"
DRIVER_FEED = "https://developer.download.nvidia.com/compute/nvidia-driver/redist/"
STALE_DAYS = 90
"""A catalogue that is older than this is reported."""

Product = Literal["driver", "cuda"]
Kind = Literal["", "long-term support", "production", "new feature"]
_COLUMNS = ["product", "release", "date", "kind", "driver", "source"]
_RELEASE = r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}"
_COMMENT = """\
# Releases as NVIDIA publishes them: data-centre drivers and CUDA. Written by scripts/catalogue-update; do not edit it.
# kind: of the driver's branch, by releases.json. driver: the one that a CUDA release contains. \
Empty: the source does not say.
"""


class PublishedRelease(Struct, frozen=True):
    """A release. `date` None, `kind` and `driver` "": unknown. `source`: the file that names the release."""

    product: Product
    release: str
    date: datetime.date | None
    kind: Kind
    driver: str
    source: str

    def __str__(self) -> str:
        known = (f"of {self.date}" if self.date else "", f"with driver {self.driver}" if self.driver else "")
        return " ".join(word for word in (self.release, *known) if word)

    @property
    def branch(self) -> str:
        """The driver's branch (580), or the toolkit's version (13.2)."""
        parts = self.release.split(".")
        return parts[0] if self.product == "driver" else ".".join(parts[:2])

    @property
    def feed(self) -> str:
        """The feed that names the release: redistrib of one product, releases.json, or another source."""
        return f"redistrib {self.product}" if self.source.startswith("redistrib_") else self.source


class ReleaseTable(Struct, frozen=True):
    """All releases, drivers first, oldest first. `read`: the day on which NVIDIA's files said so."""

    read: datetime.date
    releases: tuple[PublishedRelease, ...]


class Update(Struct, frozen=True):
    """What an update of the table changes: new and gone releases, and pairs of those that changed (before, after)."""

    new: tuple[PublishedRelease, ...]
    gone: tuple[PublishedRelease, ...]
    changed: tuple[tuple[PublishedRelease, PublishedRelease], ...]


@cached_on_disk
def release_table() -> ReleaseTable:
    """The table of releases.csv. Raises InputError."""
    return parsed(file_text(loader.FOLDER / FILE, SHOWN), SHOWN)


@cached_on_disk
def published_drivers() -> Mapping[str, Mapping[str, PublishedRelease]]:
    """The driver releases of the table by branch and version, oldest first. Raises InputError."""
    return _by_branch("driver")


@cached_on_disk
def published_toolkits() -> Mapping[str, Mapping[str, PublishedRelease]]:
    """The CUDA releases of the table by toolkit (13.2) and version (13.2.1), oldest first. Raises InputError."""
    return _by_branch("cuda")


def _by_branch(product: Product) -> Mapping[str, Mapping[str, PublishedRelease]]:
    by_branch: defaultdict[str, dict[str, PublishedRelease]] = defaultdict(dict)
    for entry in release_table().releases:
        if entry.product == product:
            by_branch[entry.branch][entry.release] = entry
    return dict(by_branch)


def stale(today: datetime.date) -> str:
    """The warning that the catalogue is older than 90 days, with what to type; "" if it is not. Raises InputError."""
    read = release_table().read
    days = (today - read).days
    if days <= STALE_DAYS:
        return ""
    checkout = (shipped_files.CHECKOUT / "scripts" / "catalogue-update").is_file()
    update = f"git pull, or scripts/catalogue-update {DRIVER_FEED}" if checkout else "pip install --upgrade rigwright"
    return f"the catalogue is of {read}, {days} days old, and does not know later releases and bulletins: {update}"


def parsed(text: str, shown: str) -> ReleaseTable:
    """The table in a text of the form of releases.csv; messages call it `shown`. Raises InputError with the line."""
    lines = text.splitlines()
    day = re.fullmatch(r"# read (\d{4}-\d\d-\d\d)", lines[0] if lines else "")
    read = _day(day[1]) if day else None
    if read is None:
        raise InputError(
            f"{shown}:1", "no date", "# read 2026-11-22", "git checkout the file, or scripts/catalogue-update"
        )
    above = sum(line.startswith("#") for line in lines)
    releases: dict[tuple[str, str], PublishedRelease] = {}
    for number, row in enumerate(csv.reader(lines[above:]), above + 1):
        if number == above + 1 and row == _COLUMNS:
            continue
        entry = _row(row)
        if entry is None or (entry.product, entry.release) in releases:
            raise InputError(
                f"{shown}:{number}", f"the row {','.join(row)!r}", ",".join(_COLUMNS), "scripts/catalogue-update"
            )
        releases[entry.product, entry.release] = entry
    return ReleaseTable(read, ordered(releases.values()))


def _row(row: list[str]) -> PublishedRelease | None:
    if len(row) != len(_COLUMNS):
        return None
    product, release, date, kind, driver, source = row
    day = _day(date) if date else None
    valid = (
        product in get_args(Product)
        and re.fullmatch(_RELEASE, release)
        and (day or not date)
        and kind in get_args(Kind)
        and (not driver or re.fullmatch(_RELEASE, driver))
        and source.strip()
    )
    return PublishedRelease(cast(Product, product), release, day, cast(Kind, kind), driver, source) if valid else None


def _day(text: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text) if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else None
    except ValueError:
        return None


def written(table: ReleaseTable) -> str:
    """The text of releases.csv for a table; the inverse of `parsed`."""
    file = io.StringIO()
    file.write(f"# read {table.read}\n{_COMMENT}")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for entry in table.releases:
        writer.writerow((entry.product, entry.release, entry.date or "", entry.kind, entry.driver, entry.source))
    return file.getvalue()


def ordered(releases: Iterable[PublishedRelease]) -> tuple[PublishedRelease, ...]:
    """The releases in the order of the table: drivers, then CUDA, each by version."""
    return tuple(sorted(releases, key=lambda entry: (entry.product != "driver", numbers(entry.release))))


def merged(
    old: ReleaseTable, published: Iterable[PublishedRelease], read: datetime.date, *, keep: bool = False
) -> ReleaseTable:
    """The table after an update with the releases that NVIDIA's files name.

    A release that only a feed named which is read again and no longer names it is left out, unless `keep`. A redistrib
    file counts more than releases.json, and both more than any other source. `read` becomes the date of the table if
    the files name drivers; CUDA's alone do not make the table of drivers newer.
    """
    now = list(published)
    again = {entry.feed for entry in now}
    releases = {(entry.product, entry.release): entry for entry in old.releases if keep or entry.feed not in again}
    for entry in sorted(now, key=_weight):
        before = releases.get((entry.product, entry.release))
        if before is None or _weight(before) <= _weight(entry):
            releases[entry.product, entry.release] = entry
    kinds = {entry.branch: entry.kind for entry in (*old.releases, *now) if entry.product == "driver" and entry.kind}
    rows = (
        replace(entry, kind=kinds.get(entry.branch, "")) if entry.product == "driver" else entry
        for entry in releases.values()
    )
    return ReleaseTable(read if any(entry.product == "driver" for entry in now) else old.read, ordered(rows))


def _weight(entry: PublishedRelease) -> int:
    return 2 if entry.source.startswith("redistrib_") else int(entry.source == "releases.json")


def compared(old: ReleaseTable, new: ReleaseTable) -> Update:
    """What the new table has that the old one has not, and the other way round."""
    before = {(entry.product, entry.release): entry for entry in old.releases}
    after = {(entry.product, entry.release): entry for entry in new.releases}
    return Update(
        tuple(entry for key, entry in after.items() if key not in before),
        tuple(entry for key, entry in before.items() if key not in after),
        tuple((before[key], entry) for key, entry in after.items() if key in before and before[key] != entry),
    )
