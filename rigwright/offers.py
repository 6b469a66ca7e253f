"""What of an archive's offer makes a driver, and the words when nothing does."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rigwright import catalogue
from rigwright.errors import HostError
from rigwright.facts.archive import Archive, Version
from rigwright.families import FABRIC_MANAGER, branch_of, upstream
from rigwright.versions import numbers
from rigwright.wanted import Driver


@dataclass(frozen=True)
class Choice:
    """Packages, each at its version, that make a driver of that release; `kernel` is what a module among them is built for."""

    packages: dict[str, str]
    version: str
    kernel: str = ""


def fits(version: str, driver: Driver) -> bool:
    """Whether a release is the one, or of the branch, that is wanted."""
    return version == driver.version if driver.version else version.startswith(f"{driver.branch}.")


def built_here(
    offered: Archive | None, driver: Driver, wanted: Sequence[Sequence[str]], from_here: Callable[[str], bool]
) -> Choice | None:
    """Of the first family whose every member is real, each member's version: all the first one's, where it is offered by a
    source of the right kind.

    (Debian gives nvidia-persistenced versions of its own; then the newest of the branch.)
    """
    if offered is None:
        return None
    for family in wanted:
        real = {name: [found for found in offered.versions.get(name, ()) if not found.transitional] for name in family}
        for first in real[family[0]]:
            if not from_here(first.source.rstrip("/")) or not fits(upstream(first.version), driver):
                continue
            chosen = {name: _beside(first, name, real[name], driver.branch) for name in family}
            if all(chosen.values()):
                return Choice(chosen, upstream(first.version))
    return None


def _beside(first: Version, name: str, offered: Sequence[Version], branch: str) -> str:
    """The version of a family's member that goes with the first one's, from the same source; "" when there is none."""
    same = [found.version for found in offered if found.version == first.version]
    if not same and name.startswith(FABRIC_MANAGER):  # packaged apart: its revision differs, its release must not
        same = [found.version for found in offered if upstream(found.version) == upstream(first.version)]
    if not same and name == "nvidia-persistenced":
        same = [found.version for found in offered if branch_of(found.version) == branch]
        same = same or [found.version for found in offered]
    return next(iter(same), "")


def module_names(wanted: Sequence[tuple[str, Sequence[str]]], kernel: str, flavours: Sequence[str]) -> tuple[str, ...]:
    """The packages of built modules to ask for: of the kernel itself, then those that follow its flavour."""
    return tuple(f"{begin}{word}" for word in (kernel, *flavours) for begin, _ in wanted)


def built_already(
    offered: Archive, driver: Driver, wanted: Sequence[tuple[str, Sequence[str]]], kernel: str, flavours: Sequence[str]
) -> Choice | None:
    """A driver whose module is built for the kernel; else for the newest of its flavour that is not older, to move to.

    The module and everything else are of one release, or it is none.
    """
    for name in module_names(wanted, kernel, flavours):
        beside = next(names for begin, names in wanted if name.removeprefix(begin) in (kernel, *flavours))
        for module in offered.versions.get(name, ()):
            release = module.kernel or kernel
            if module.transitional or not fits(module.driver, driver) or _order(release) < _order(kernel):
                continue
            packages = {one: _of_release(module.driver, offered.versions.get(one, ())) for one in beside}
            if all(packages.values()):
                own = name if name.endswith(kernel) else name.removesuffix(_last(name, flavours)) + release
                return Choice({**packages, own: module.version}, module.driver, release)
    return None


def _last(name: str, flavours: Sequence[str]) -> str:
    return next(word for word in sorted(flavours, key=len, reverse=True) if name.endswith(f"-{word}"))


def _of_release(driver: str, offered: Sequence[Version]) -> str:
    return next((one.version for one in offered if not one.transitional and upstream(one.version) == driver), "")


def _order(kernel: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", kernel))


def transitional(offered: Archive | None) -> str:
    """A package that only brings another branch, "" when there is none."""
    found = offered.versions.items() if offered else ()
    return next((name for name, versions in found if any(one.transitional for one in versions)), "")


def without_module(driver: Driver, kernel: str, offered: Archive, secure_boot: bool) -> HostError:
    """What is said when no module comes built for the kernel that boots next."""
    modules = [
        f"{one.driver}{f' for {one.kernel}' if one.kernel else ''}"
        for versions in offered.versions.values()
        for one in versions
        if one.driver and not one.transitional
    ]
    have = f"; there is {', '.join(dict.fromkeys(modules))}" if modules else ""
    why = "Secure Boot is on, and " if secure_boot else ""
    wanted = driver.version or f"branch {driver.branch}"
    return HostError(
        "driver.modules",
        f"{why}no source has a built and signed module of {wanted} for {kernel}, the kernel that boots next{have}",
        "a linux-modules-nvidia package of that driver for that kernel",
        "another branch or version; or modules: dkms, with Secure Boot off in the firmware or a key enrolled at the console"
        if secure_boot
        else "another branch or version, or modules: dkms",
    )


def nowhere(driver: Driver, offered_by: dict[str, Archive]) -> HostError:
    """What is said when no source has the driver: what was never a release, what is only transitional, what there is."""
    branch = catalogue.branches().get(driver.branch)
    releases = branch.versions if branch else ()
    have = sorted(
        {
            f"{upstream(version.version)} ({source})"
            for source, offered in offered_by.items()
            for versions in offered.versions.values()
            for version in versions
            if not version.transitional and upstream(version.version).startswith(driver.branch + ".")
        }
    )
    sources = f"the sources have {', '.join(have)}" if have else "the sources have nothing real of this branch"
    where = "driver.version" if driver.version else "driver.branch"
    only = next((name for offered in offered_by.values() if (name := transitional(offered))), "")
    if driver.version and releases and driver.version not in releases:
        near = sorted([*releases, driver.version], key=numbers)
        at = near.index(driver.version)
        beside = [word for word in near[max(0, at - 1) : at + 2] if word != driver.version]
        return HostError(
            where,
            f"{driver.version} was never a release",
            f"{' or '.join(beside)}; {sources}",
            "name one that a source has, or only the branch",
        )
    if only and not have:
        return HostError(
            where,
            f"{only} is only a transitional package that brings another branch",
            f"a real driver {driver.branch}; {sources}",
            "source: cuda, or auto",
        )
    wanted = driver.version or f"branch {driver.branch}"
    return HostError(
        where,
        f"no source has {wanted}",
        sources,
        "name one that a source has; source: auto looks in NVIDIA's repository too",
    )
