"""Chooses the packages of a driver from those that an archive offers, and creates the error when none match."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from rigwright import catalogue
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError
from rigwright.core.numbers import numbers
from rigwright.driver.package_sets import FABRIC_MANAGER, branch_of, upstream
from rigwright.facts.apt.archive import Archive, Version


class Choice(Struct, frozen=True):
    """The packages of a driver release with their versions. `kernel`: the kernel of the prebuilt module, or ""."""

    packages: dict[str, str]
    version: str
    kernel: str = ""


def fits(version: str, driver: Driver) -> bool:
    """Whether `version` is the wanted release, or a release of the wanted branch if no release is given."""
    return version == driver.version if driver.version else version.startswith(f"{driver.branch}.")


def built_here(
    offered: Archive | None, driver: Driver, wanted: Sequence[Sequence[str]], from_here: Callable[[str], bool]
) -> Choice | None:
    """The first set of packages with a dkms module that the archive has completely; None if there is none.

    Transitional packages are ignored. Each package has the version of the first package, which comes from a source that
    `from_here` accepts. Debian's nvidia-persistenced has separate versions; its newest version of the branch is used.
    """
    if offered is None:
        return None
    for family in wanted:
        real = {
            name: [version for version in offered.versions.get(name, ()) if not version.transitional] for name in family
        }
        for first in real[family[0]]:
            if not from_here(first.source.rstrip("/")) or not fits(upstream(first.version), driver):
                continue
            chosen = {name: _beside(first, name, real[name], driver.branch) for name in family}
            if all(chosen.values()):
                return Choice(chosen, upstream(first.version))
    return None


def _beside(first: Version, name: str, offered: Sequence[Version], branch: str) -> str:
    """The version of a package that matches the first package of its set; "" when there is none."""
    same = [version.version for version in offered if version.version == first.version]
    if not same and name.startswith(FABRIC_MANAGER):  # another source package: same release, but another revision
        same = [version.version for version in offered if upstream(version.version) == upstream(first.version)]
    if not same and name == "nvidia-persistenced":
        same = [version.version for version in offered if branch_of(version.version) == branch]
        same = same or [version.version for version in offered]
    return next(iter(same), "")


def module_names(wanted: Sequence[tuple[str, Sequence[str]]], kernel: str, flavours: Sequence[str]) -> tuple[str, ...]:
    """The names of packages with prebuilt modules: first for the exact kernel, then those that follow its flavour."""
    return tuple(f"{begin}{word}" for word in (kernel, *flavours) for begin, _ in wanted)


def built_already(
    offered: Archive, driver: Driver, wanted: Sequence[tuple[str, Sequence[str]]], kernel: str, flavours: Sequence[str]
) -> Choice | None:
    """A driver with a prebuilt module for the kernel, or for the newest kernel of its flavour that is not older.

    All packages of the driver are of one release. Returns None when there is no such set.
    """
    for name in module_names(wanted, kernel, flavours):
        beside = next(names for begin, names in wanted if name.removeprefix(begin) in (kernel, *flavours))
        for module in offered.versions.get(name, ()):
            release = module.kernel or kernel
            if module.transitional or not fits(module.driver, driver) or _order(release) < _order(kernel):
                continue
            packages = {package: _of_release(module.driver, offered.versions.get(package, ())) for package in beside}
            if all(packages.values()):
                own = name if name.endswith(kernel) else name.removesuffix(_last(name, flavours)) + release
                return Choice({**packages, own: module.version}, module.driver, release)
    return None


def with_metapackage(choice: Choice, offered: Archive) -> Choice:
    """The choice with the package that follows its kernel's flavour, as ubuntu-drivers installs it, if that one brings
    this module."""
    for name, versions in offered.versions.items():
        for version in versions:
            if version.kernel == choice.kernel and version.driver == choice.version and not version.transitional:
                return Choice({**choice.packages, name: version.version}, choice.version, choice.kernel)
    return choice


def _last(name: str, flavours: Sequence[str]) -> str:
    return next(word for word in sorted(flavours, key=len, reverse=True) if name.endswith(f"-{word}"))


def _of_release(driver: str, offered: Sequence[Version]) -> str:
    return next(
        (version.version for version in offered if not version.transitional and upstream(version.version) == driver), ""
    )


def _order(kernel: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", kernel))


def transitional(offered: Archive | None) -> str:
    """The name of a transitional package, which only depends on another branch; "" when the archive has none."""
    packages = offered.versions.items() if offered else ()
    return next((name for name, versions in packages if any(version.transitional for version in versions)), "")


def without_module(driver: Driver, kernel: str, offered: Archive, secure_boot: bool) -> HostError:
    """The error for a missing prebuilt module for the kernel that boots next."""
    modules = [
        f"{version.driver}{f' for {version.kernel}' if version.kernel else ''}"
        for versions in offered.versions.values()
        for version in versions
        if version.driver and not version.transitional
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
    """The error for a driver that no source has. It names the available releases.

    It distinguishes a version that was never released, a branch with only transitional packages, and a missing version.
    """
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
    asked = f"; asked were {' and '.join(offered_by)}" if len(offered_by) > 1 else ""
    sources = f"the sources have {', '.join(have)}" if have else f"the sources have no real driver {driver.branch}"
    sources += asked
    where = "driver.version" if driver.version else "driver.branch"
    only = next((name for offered in offered_by.values() if (name := transitional(offered))), "")
    if driver.version and releases and driver.version not in releases:
        near = sorted([*releases, driver.version], key=numbers)
        at = near.index(driver.version)
        beside = [word for word in near[max(0, at - 1) : at + 2] if word != driver.version]
        return HostError(
            where,
            f"{driver.version} was never a release",
            f"a release, such as {' or '.join(beside)}; {sources}",
            _instead(driver, have),
        )
    if only and not have:
        return HostError(
            where,
            f"{only} is only a transitional package that brings another branch",
            f"a real driver {driver.branch}; {sources}",
            "source: cuda, or auto",
        )
    wanted = driver.version or f"branch {driver.branch}"
    unknown = "" if branch else f", and the catalogue knows no branch {driver.branch}"
    auto = "" if "cuda" in offered_by else "; source: auto looks in NVIDIA's repository too"
    return HostError(where, f"no source has {wanted}{unknown}", sources, _instead(driver, have) + auto)


def _instead(driver: Driver, have: Sequence[str]) -> str:
    """What the inventory can have: the newest release that a source has, or else the neighbouring branches."""
    if have:
        newest = max((release.split()[0] for release in have), key=numbers)
        return f"driver: {{branch: '{driver.branch}', version: '{newest}'}}, or without version: the newest"
    known = sorted({*catalogue.branches(), driver.branch}, key=numbers)
    at = known.index(driver.branch)
    beside = [name for name in known[max(0, at - 1) : at + 2] if name != driver.branch]
    return f"another branch, such as {' or '.join(beside)}: invoke explain {beside[0]} shows what it supports"
