"""Chooses the packages of a driver from an archive, and makes the error if there are none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import product

from msgspec import Struct

from rigwright import catalogue
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError
from rigwright.core.numbers import numbers
from rigwright.driver.package_sets import FABRIC_MANAGER, branch_of, upstream
from rigwright.facts.apt.archive import Archive, Version


class Choice(Struct, frozen=True):
    """The packages of a driver release with their versions. `kernel`: that of the prebuilt module, or ""."""

    packages: dict[str, str]
    version: str
    kernel: str = ""


def fits(version: str, driver: Driver) -> bool:
    """Whether `version` is the wanted release, or any release of the branch if no release is wanted."""
    return version == driver.version if driver.version else version.startswith(f"{driver.branch}.")


def built_here(
    offered: Archive | None, driver: Driver, wanted: Sequence[Sequence[str]], from_here: Callable[[str], bool]
) -> Choice | None:
    """The first set of packages with a dkms module that the archive has completely, without transitional packages; None
    if there is none.

    Each package has the version of the first package, which comes from a source that `from_here` accepts. Debian's
    nvidia-persistenced has separate versions; its newest version of the branch is used.
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
    """The version of a package that matches the first package of its set; "" if there is none."""
    same = [version.version for version in offered if version.version == first.version]
    if not same and name.startswith(FABRIC_MANAGER):  # another source package: same release, but another revision
        same = [version.version for version in offered if upstream(version.version) == upstream(first.version)]
    if not same and name == "nvidia-persistenced":
        same = [version.version for version in offered if branch_of(version.version) == branch]
        same = same or [version.version for version in offered]
    return next(iter(same), "")


def module_names(wanted: Sequence[tuple[str, Sequence[str]]], kernel: str, flavours: Sequence[str]) -> tuple[str, ...]:
    """The names of packages with prebuilt modules: first for the exact kernel, then for its flavours."""
    return tuple(f"{begin}{word}" for word in (kernel, *flavours) for begin, _ in wanted)


def built_already(
    offered: Archive, driver: Driver, wanted: Sequence[tuple[str, Sequence[str]]], kernel: str, flavours: Sequence[str]
) -> Choice | None:
    """A driver of one release with a prebuilt module for the kernel, or for the newest kernel of its flavour that is
    not older; None if there is none."""
    for word, (begin, beside) in product((kernel, *flavours), wanted):
        for module in offered.versions.get(f"{begin}{word}", ()):
            release = module.kernel or kernel
            if module.transitional or not fits(module.driver, driver) or _order(release) < _order(kernel):
                continue
            packages = {
                package: next(
                    (
                        version.version
                        for version in offered.versions.get(package, ())
                        if not version.transitional and upstream(version.version) == module.driver
                    ),
                    "",
                )
                for package in beside
            }
            if all(packages.values()):
                return Choice({**packages, f"{begin}{release}": module.version}, module.driver, release)
    return None


def with_metapackage(choice: Choice, offered: Archive) -> Choice:
    """The choice with the package that follows its kernel's flavour, as ubuntu-drivers installs it, if that package
    brings this module."""
    for name, versions in offered.versions.items():
        for version in versions:
            if version.kernel == choice.kernel and version.driver == choice.version and not version.transitional:
                return Choice({**choice.packages, name: version.version}, choice.version, choice.kernel)
    return choice


def _order(kernel: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", kernel))


def transitional(offered: Archive | None) -> str:
    """The name of a transitional package, which only depends on another branch; "" if the archive has none."""
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
    wanted = driver.version or f"branch {driver.branch}"
    problem = f"no source has a built and signed module of {wanted} for {kernel}, the kernel that boots next{have}"
    fix = "another branch or version, or modules: dkms"
    if secure_boot:
        problem = f"Secure Boot is on, and {problem}"
        fix = (
            "another branch or version; or modules: dkms, with Secure Boot off in the firmware or a key enrolled at "
            "the "
            "console"
        )
    return HostError("driver.modules", problem, "a linux-modules-nvidia package of that driver for that kernel", fix)


def nowhere(driver: Driver, offered_by: dict[str, Archive]) -> HostError:
    """The error for a driver that no source has, with the available releases: the version was never released, the
    branch has only transitional packages, or the version is missing."""
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
    sources = f"the sources have {', '.join(have)}" if have else f"the sources have no real driver {driver.branch}"
    sources += f"; asked were {' and '.join(offered_by)}" if len(offered_by) > 1 else ""
    where = "driver.version" if driver.version else "driver.branch"
    only = next((name for offered in offered_by.values() if (name := transitional(offered))), "")
    if driver.version and releases and driver.version not in releases:
        expected = f"a release, such as {' or '.join(_neighbours(driver.version, releases))}; {sources}"
        return HostError(where, f"{driver.version} was never a release", expected, _instead(driver, have))
    if only and not have:
        problem = f"{only} is only a transitional package that brings another branch"
        return HostError(where, problem, f"a real driver {driver.branch}; {sources}", "source: cuda, or auto")
    wanted = driver.version or f"branch {driver.branch}"
    unknown = "" if branch else f", and the catalogue knows no branch {driver.branch}"
    auto = "" if "cuda" in offered_by else "; source: auto looks in NVIDIA's repository too"
    return HostError(where, f"no source has {wanted}{unknown}", sources, _instead(driver, have) + auto)


def _neighbours(version: str, known: Iterable[str]) -> list[str]:
    """The versions before and after a version."""
    order = sorted({*known, version}, key=numbers)
    at = order.index(version)
    return order[max(0, at - 1) : at] + order[at + 1 : at + 2]


def _instead(driver: Driver, have: Sequence[str]) -> str:
    """What the inventory can have: the newest release that a source has, otherwise a neighbouring branch."""
    if have:
        newest = max((release.split()[0] for release in have), key=numbers)
        return f"driver: {{branch: '{driver.branch}', version: '{newest}'}}, or without version: the newest"
    beside = _neighbours(driver.branch, catalogue.branches())
    return f"another branch, such as {' or '.join(beside)}: invoke explain {beside[0]} shows what it supports"
