"""Which driver packages a host will get, exactly, before anything changes: from its own apt, asked in private."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rigwright import catalogue
from rigwright.compatibility import card_of, flavour_of, needs_fabric_manager
from rigwright.errors import HostError
from rigwright.facts import Facts, archive, files, pci
from rigwright.facts import os as system
from rigwright.facts.os import OsRelease
from rigwright.preferences import pin_path, pin_text
from rigwright.versions import numbers
from rigwright.wanted import CudaSource, Driver

PIN = "nvidia"
FABRIC_MANAGER = "nvidia-fabricmanager"
BESIDE = ("nvidia-settings", "nvidia-modprobe", "nvidia-persistenced")
"""Packages with a driver's version that work beside every driver."""
BLOCK = "/^(lib|linux-modules-|linux-objects-|linux-signatures-|xserver-xorg-video-)?nvidia-(.*-)?[0-9][0-9][0-9](-|$)/ cuda-drivers*"
"""Names that carry a driver branch; with the closure pinned first, every other branch is kept out. Not nvidia-container-toolkit."""


@dataclass(frozen=True)
class Resolution:
    """The driver that a host will have: its exact version, where it comes from and why, and every package at its version."""

    version: str
    source: str
    reason: str
    closure: dict[str, str]


def upstream(version: str) -> str:
    """535.261.03 of a package version 535.261.03-0ubuntu1, epoch or none."""
    return re.split(r"[-+~]", version.split(":", 1)[-1])[0]


def branch_of(version: str) -> str:
    """The driver branch that a package version belongs to, "" when it is no driver's version (container toolkit 1.14)."""
    found = re.match(r"(\d{3})\.\d", upstream(version))
    return found[1] if found else ""


def repository(os_release: OsRelease, given: CudaSource | None) -> archive.Repository:
    """NVIDIA's repository for the host's distribution, or the mirror that the inventory names."""
    known = catalogue.cuda_repository()
    url = (
        given.url
        if given
        else known.url.format(distribution=f"{os_release.id}{os_release.version_id.replace('.', '')}")
    )
    key = (given and given.key) or f"{url.rstrip('/')}/{known.key}"
    return archive.Repository(
        url.rstrip("/"), key, given.fingerprint if given and given.fingerprint else known.fingerprint
    )


def families(
    branch: str, os_release: OsRelease, flavour: str = "proprietary", fabric_manager: bool = False
) -> tuple[tuple[str, ...], ...]:
    """The sets of packages that make a server's driver with that kernel module, best first; the fabric manager is of the driver's version."""
    also = (f"{FABRIC_MANAGER}-{branch}",) if fabric_manager else ()
    if os_release.id == "debian":
        module = "nvidia-open-kernel-dkms" if flavour == "open" else "nvidia-kernel-dkms"
        tesla = f"nvidia-tesla-{branch}"  # a second branch, kept for servers beside the release's own
        libraries = (f"lib{tesla}-cuda1", f"lib{tesla}-cfg1")
        own = (module, "nvidia-smi", "nvidia-persistenced", "libcuda1", *also)
        if flavour == "open":
            return (own,)
        return own, (f"{tesla}-kernel-dkms", f"{tesla}-smi", "nvidia-persistenced", *libraries, *also)
    end = "-open" if flavour == "open" else ""
    return (
        (f"nvidia-headless-{branch}-server{end}", f"nvidia-utils-{branch}-server", *also),
        (f"nvidia-headless-{branch}{end}", f"nvidia-utils-{branch}", *also),
    )


def pinned(facts: Facts, driver: Driver) -> Resolution | None:
    """The driver that the host's own pin names, when it is what is wanted: then nothing needs to be asked of apt."""
    now = facts(files.file(pin_path(PIN)))
    if now is None:
        return None
    names = re.search(r"^Package: (.+)$", now.text, re.MULTILINE)
    version = re.search(r"^Pin: version ([0-9.]+)\*$", now.text, re.MULTILINE)
    if not names or not version or not _fits(version[1], driver):
        return None
    return Resolution(version[1], "", "pinned", dict.fromkeys(names[1].split(), version[1]))


def _fits(version: str, driver: Driver) -> bool:
    return version == driver.version if driver.version else version.startswith(f"{driver.branch}.")


def resolved(facts: Facts, driver: Driver, given: CudaSource | None) -> Resolution:
    """The driver's exact version and closure.

    Raises HostError: no such release, no source has it, only transitional packages, another branch would come along.
    """
    os_release, _, gpus, switches = facts.all(system.os_release, files.file(pin_path(PIN)), pci.gpus, pci.nvswitches)
    kept = pinned(facts, driver)
    if kept:
        return kept
    remote = repository(os_release, given)
    cards = [card for one in gpus if (card := card_of(one.device_id))]
    fabric = needs_fabric_manager(cards, len(switches))
    wanted = families(driver.branch, os_release, flavour_of(cards, driver), fabric)
    known_names = tuple(name for family in wanted for name in family)
    offered_by: dict[str, archive.Archive] = {}
    if driver.source in ("auto", "distribution"):
        offered_by["distribution"] = facts(archive.offered(known_names))
    choice = _choose(offered_by.get("distribution"), driver, wanted, "")
    source, reason = "distribution", "the distribution's archive has the real branch"
    if choice is None and driver.source in ("auto", "cuda"):
        offered_by["cuda"] = facts(archive.offered(known_names, remote))
        choice = _choose(offered_by["cuda"], driver, wanted, remote.url)
        source = "cuda"
        only = _transitional(offered_by.get("distribution"))
        reason = (
            f"the distribution's {only} is only transitional" if only else "the distribution's archive does not have it"
        )
        reason = "the inventory says so" if driver.source == "cuda" else reason
    if driver.source.startswith("/"):
        remote = archive.Repository(f"file:{driver.source}", "", "")
        source, reason = driver.source, "the inventory says so"
        offered_by[source] = facts(archive.offered(known_names, remote))
        choice = _choose(offered_by[source], driver, wanted, remote.url)
    if choice is None:
        raise _nowhere(driver, offered_by)
    version = next(iter(choice.values()))
    ask = tuple(f"{name}={each}" for name, each in choice.items())
    preferences = (
        pin_text(["*nvidia*", "cuda-drivers*", "libcuda1"], f"{upstream(version)}*")
        if os_release.id == "debian"
        else (pin_text([f"*nvidia*-{driver.branch}*"], f"{upstream(version)}*", BLOCK))
    )
    plan = facts(archive.simulated(ask, preferences, remote if source != "distribution" else None))
    if plan.error:
        raise HostError(
            "driver",
            f"apt cannot install {' '.join(ask)}: {plan.error}",
            "a set of packages that fit together",
            "sudo apt-get -f install",
        )
    closure = {
        move.name: move.version for move in plan.moves if move.version and upstream(move.version) == upstream(version)
    }
    strangers = [
        move
        for move in plan.moves
        if "nvidia" in move.name and move.name not in BESIDE and branch_of(move.version) not in ("", driver.branch)
    ]
    if strangers:
        raise HostError(
            "driver",
            f"{ask[0]} would bring {strangers[0].name} {strangers[0].version}",
            f"branch {driver.branch} and nothing else",
            "source: cuda",
        )
    closure.update({name: each for name, each in choice.items() if upstream(each) == upstream(version)})
    return Resolution(upstream(version), source, reason, closure)


def _choose(
    offered: archive.Archive | None, driver: Driver, wanted: Sequence[Sequence[str]], only_from: str
) -> dict[str, str] | None:
    """Of the first family whose every member is real, each member's version: all the first one's, where it is offered.

    (Debian gives nvidia-persistenced versions of its own; then the newest of the branch.)
    """
    if offered is None:
        return None
    for family in wanted:
        real = {name: [found for found in offered.versions.get(name, ()) if not found.transitional] for name in family}
        for first in real[family[0]]:
            here = not only_from or first.source.rstrip("/").startswith(only_from)
            if not here or not _fits(upstream(first.version), driver):
                continue
            chosen = {name: _beside(first, name, real[name], driver.branch) for name in family}
            if all(chosen.values()):
                return chosen
    return None


def _beside(first: archive.Version, name: str, offered: Sequence[archive.Version], branch: str) -> str:
    """The version of a family's member that goes with the first one's, from the same source; "" when there is none."""
    same = [found.version for found in offered if found.version == first.version]
    if not same and name.startswith(FABRIC_MANAGER):  # packaged apart: its revision differs, its release must not
        same = [found.version for found in offered if upstream(found.version) == upstream(first.version)]
    if not same and name == "nvidia-persistenced":
        same = [found.version for found in offered if branch_of(found.version) == branch]
        same = same or [found.version for found in offered]
    return next(iter(same), "")


def _transitional(offered: archive.Archive | None) -> str:
    found = (
        [name for name, versions in offered.versions.items() if any(v.transitional for v in versions)]
        if offered
        else []
    )
    return found[0] if found else ""


def _nowhere(driver: Driver, offered_by: dict[str, archive.Archive]) -> HostError:
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
    only = next((name for offered in offered_by.values() if (name := _transitional(offered))), "")
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
