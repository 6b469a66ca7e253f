"""Whether the module of a driver builds for the kernels of a host, and which driver builds instead."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue.compatibility import Card, runs
from rigwright.catalogue.kernels import any_builds, builds, first_builders, newest_kernel, series
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError


class BuildProblem(Struct, frozen=True):
    """A driver whose module does not build for a kernel (`certain`), or is not known to build for it. `builder`: the
    branch that builds instead; "" if none is known."""

    certain: bool
    error: HostError
    builder: str


def depends_on_release(driver: Driver, kernel: str) -> bool:
    """Whether not all releases that `driver` permits are known to build for a kernel release."""
    return any(builds(release, series(kernel)) != "builds" for release in _releases(driver))


def build_problem(
    driver: Driver, version: str, kernel: str, cards: Collection[Card], today: datetime.date
) -> BuildProblem | None:
    """The problem of a driver release with a kernel release; None if it builds or the branch is not known.

    With `version` "" (before the release is chosen) a branch has a problem only if none of its releases builds. The fix
    is another driver that builds and that all GPUs support.
    """
    releases, wanted = (version,) if version else _releases(driver), series(kernel)
    if not _releases(driver) or (answer := any_builds(releases, wanted)) == "builds":
        return None
    last = newest_kernel(releases)
    firsts = {
        branch: first
        for branch, first in first_builders(wanted).items()
        if all(runs(card, int(branch)) for card in cards)
    }
    chosen = _chosen(driver.branch, firsts, today)
    newest = _versions(chosen)[-1] if chosen == driver.branch else ""
    does = "does not build" if answer == "fails" else "is not known to build"
    others = f"; {newest or chosen} does" if chosen else ""
    older = f"a kernel up to {last}" if last else "an older kernel"
    named = ", ".join(
        branch if first == _versions(branch)[0] else f"{branch} from {first} on" for branch, first in firsts.items()
    )
    more = (f", version: '{newest}'" if driver.version else ", source: cuda") if newest else ""
    error = HostError(
        "driver.version" if driver.version else "driver.branch",
        f"{version or driver.version or driver.branch} {does} for kernel {wanted} ({kernel}){others}",
        f"{older}, or a driver that builds for {wanted}: {named}" if named else older,
        f"driver: {{branch: '{chosen}'{more}}}" if chosen else f"boot {older}",
    )
    return BuildProblem(answer == "fails", error, chosen)


def _releases(driver: Driver) -> Sequence[str]:
    """The releases that `driver` permits; () if the kernels of its branch are not known."""
    branch = catalogue.branches().get(driver.branch)
    if branch is None or not branch.builds_to_kernel:
        return ()
    return (driver.version,) if driver.version else branch.versions


def _versions(branch: str) -> Sequence[str]:
    return catalogue.branches()[branch].versions


def _chosen(branch: str, firsts: Mapping[str, str], today: datetime.date) -> str:
    """The branch to use: the same with another release, otherwise the next supported one; "" if there is none."""
    if branch in firsts:
        return branch
    alive = [name for name in firsts if (catalogue.branches()[name].eol or today) >= today]
    newer = [name for name in alive if name > branch]
    return next(iter(newer or alive[::-1] or list(firsts)[::-1]), "")
