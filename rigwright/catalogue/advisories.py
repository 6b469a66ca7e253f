"""NVIDIA's security bulletins on the driver (advisories.yml), and the fixes that a driver lacks."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from rigwright.catalogue.drivers import Branch, branches
from rigwright.catalogue.loader import table
from rigwright.core.files.disk_cache import cached_on_disk
from rigwright.core.numbers import numbers
from rigwright.core.schema import Branch as BranchName, Release


class Advisory(Struct, frozen=True):
    """A bulletin: its first publication, the first fixed release of each branch that it names, and its address."""

    title: str
    date: datetime.date
    fixed: dict[BranchName, Release]
    source: str
    number: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"https://\S+", self.source):
            raise ValueError(f"source '{self.source}'", "source: the address of the bulletin, https://...")
        for branch, release in self.fixed.items():
            if release.split(".")[0] != branch:
                raise ValueError(f"fixed: {release} in branch {branch}", f"a release of {branch}")

    def __str__(self) -> str:
        return f"bulletin {self.number} ({self.date})"


class Advisories(Struct, frozen=True):
    """The bulletins by number, oldest first. `sources`: by key of a bulletin."""

    advisories: dict[str, Advisory]
    sources: dict[str, str]


@cached_on_disk
def advisories() -> tuple[Advisory, ...]:
    """All bulletins, oldest first. Raises InputError."""
    rows = table("advisories.yml", Advisories, "advisories").advisories
    return tuple(sorted((replace(row, number=name) for name, row in rows.items()), key=lambda row: row.date))


class Shortfall(Struct, frozen=True):
    """The fixes that a driver lacks. `first_fixed`: the newest release of its branch that a bulletin names ("": none).

    `missing`: the bulletins whose fixes the release lacks although its branch has them. `ended`: the first bulletin
    that leaves the branch out, None if the newest names it. `since`: from then on the branch has no fixes. `instead`:
    the branch to move to.
    """

    version: str
    branch: str
    first_fixed: str
    missing: tuple[Advisory, ...]
    ended: Advisory | None
    since: datetime.date | None
    instead: str

    @property
    def text(self) -> str:
        """What is lacking, with bulletins and dates, in one sentence."""
        parts = []
        if self.missing:
            fixes = "those of" if len(self.missing) == 1 else f"those of {len(self.missing)} bulletins, the last is"
            parts.append(f"driver {self.version} lacks security fixes: {fixes} {self.missing[-1]}")
            parts.append(f"{self.first_fixed} is the first release of branch {self.branch} with all of them")
        if self.ended and self.since:
            parts.append(
                f"branch {self.branch} has had no fixes since {self.since:%Y-%m}, {self.ended} names no release of it"
            )
            if not self.missing:
                parts.append(f"{self.first_fixed} was the last release with fixes")
        elif self.ended:
            parts.append(f"no bulletin names a release of branch {self.branch}, the last is {advisories()[-1]}")
        return "; ".join(parts)

    @property
    def source(self) -> str:
        """The address of the newest bulletin that says so."""
        return (self.ended or self.missing[-1]).source

    @property
    def expected(self) -> str:
        """The release with the fixes, or that a branch with fixes is expected."""
        return "a branch that gets fixes" if self.ended else f"{self.first_fixed} or newer"

    @property
    def fix(self) -> str:
        """What to write into the inventory."""
        if self.ended and self.instead:
            return f"driver: {{branch: '{self.instead}'}} in the inventory, then invoke provision"
        if self.missing:
            return (
                f"driver: {{branch: '{self.branch}', version: '{self.first_fixed}'}} in the inventory, "
                "then invoke provision"
            )
        return "no branch with fixes supports these GPUs: let nobody whom you do not trust run programs on this host"


def shortfall(version: str, supported: Collection[str] | None = None) -> Shortfall | None:
    """The security fixes that a driver lacks; None if no bulletin says so, or if `version` is neither a release nor a
    branch.

    `version`: a release (535.161.08), or a branch (535), which stands for its newest release. `supported`: the branches
    that all GPUs of the machine support; None: all.
    """
    if not re.fullmatch(r"[0-9]{3}(\.[0-9]{1,4})*", version):
        return None
    branch = version.split(".")[0]
    known = advisories()
    naming = [row for row in known if branch in row.fixed]
    first_fixed = max((row.fixed[BranchName(branch)] for row in naming), key=numbers, default="")
    missing = tuple(
        row for row in naming if "." in version and numbers(version) < numbers(row.fixed[BranchName(branch)])
    )
    newest, ended = known[-1], None
    if branch not in newest.fixed and int(branch) < max(map(int, newest.fixed)):
        names_newer = (row for row in known if naming and any(int(name) > int(branch) for name in row.fixed))
        ended = next((row for row in names_newer if row.date > naming[-1].date), newest)
    if not missing and ended is None:
        return None
    since = None
    if naming and ended:
        eol = branches()[branch].eol if branch in branches() else None
        since = eol if eol and naming[-1].date < eol < ended.date else ended.date
    return Shortfall(version, branch, first_fixed, missing, ended, since, _instead(newest, supported))


def floor(branch: str) -> tuple[str, Advisory] | None:
    """The first release of a branch with all known fixes, and the newest bulletin about it; None without a bulletin."""
    naming = [row for row in advisories() if branch in row.fixed]
    name = BranchName(branch)
    return (max((row.fixed[name] for row in naming), key=numbers), naming[-1]) if naming else None


def _instead(newest: Advisory, supported: Collection[str] | None) -> str:
    """The branch with fixes that the GPUs support: long-term support first, then production; "" for none."""
    fits = [
        branches()[name] for name in newest.fixed if name in branches() and (supported is None or name in supported)
    ]

    def merit(branch: Branch) -> tuple[bool, bool, datetime.date]:
        return branch.kind == "long-term support", branch.kind == "production", branch.eol or datetime.date.min

    return max(fits, key=merit).name if fits else ""
