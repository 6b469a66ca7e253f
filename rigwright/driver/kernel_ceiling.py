"""The newest kernel that apt may install where DKMS builds the driver's module, and the pin against newer kernels."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from msgspec.structs import asdict

from rigwright.catalogue.kernels import builds, newest_kernel, series
from rigwright.core.desired import Driver
from rigwright.core.numbers import numbers
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.driver.apt_pin import Pin, pin_path
from rigwright.driver.package_sets import KERNELS
from rigwright.driver.resolve import Resolution, moves_it
from rigwright.facts import Facts, grub, kernel as kernels, system
from rigwright.facts.apt import dpkg
from rigwright.facts.apt.dpkg import Move

CEILING = "kernel"
"""The name of rigwright's preferences file against newer kernels."""
UPGRADE_WITHOUT = dpkg.upgrade_without(pin_path(CEILING))
"""What a full upgrade would change if that file did not exist."""


def newest_buildable(facts: Facts, driver: Driver, resolution: Resolution) -> str:
    """The newest kernel series (6.8) for which the driver's module is known to build: by the catalogue, or because its
    module for the running or the newest kernel is there.

    "" if newer kernels are not withheld: the module is prebuilt, so its kernel is held; the inventory has
    `kernel_ceiling: false`; or the catalogue has no kernel for the release.
    """
    known = newest_kernel((resolution.version,))
    if resolution.kernel or not driver.kernel_ceiling or not known:
        return ""
    releases = list(dict.fromkeys(filter(None, facts.all(system.running_kernel, kernels.newest))))
    versions = facts.all(*(kernels.module_version(release, "nvidia") for release in releases))
    proved = [series(at) for at, version in zip(releases, versions, strict=True) if version == resolution.version]
    return max((known, *proved), key=numbers)


def exceeds(version: str, ceiling: str) -> bool:
    """Whether a kernel release, or the version of a kernel's package, is of a newer series than `ceiling`."""
    return bool(series(version)) and numbers(series(version)) > numbers(ceiling)


def too_new(moves: tuple[Move, ...], ceiling: str) -> list[Move]:
    """The steps of an upgrade that install a package of a kernel newer than `ceiling`, images first. In Debian and
    Ubuntu the versions of these packages, and of the metapackages, begin with the kernel's series."""
    new = [
        move
        for move in moves
        if exceeds(move.version, ceiling) and any(fnmatchcase(move.name, glob) for glob in KERNELS)
    ]
    return sorted(new, key=lambda move: not move.name.startswith("linux-image-"))


def forbidden_moves(facts: Facts, driver: Driver, resolution: Resolution) -> list[Move]:
    """The steps of a full upgrade that change the driver, CUDA or a held kernel, or bring a kernel above the
    ceiling."""
    moves = facts(dpkg.next_upgrade)
    moving = [move for move in moves if moves_it(move, resolution)]
    if any(move.name.startswith("linux-") for move in moves):
        ceiling = newest_buildable(facts, driver, resolution)
        moving += too_new(moves, ceiling) if ceiling else []
    return moving


def ceiling_pin(ceiling: str) -> Pin:
    """The pin with which apt installs no package of a kernel newer than `ceiling`, and no metapackage that brings one.
    It permits older versions of the same packages."""
    major, minor = map(int, ceiling.split("."))
    return Pin(KERNELS, rf"version /^({major}\.({_above(minor)})|({_above(major)})\.)/", -1)


def ceiling_text(ceiling: str, templates: Templates = SHIPPED) -> str:
    """The text of the preferences file with that pin."""
    return templates.render("apt/pin.j2", {"pins": [asdict(ceiling_pin(ceiling))]})


def _above(number: int) -> str:
    """An extended regular expression that matches the beginning of every larger integer, and of no other."""
    digits = str(number)
    longer = f"[1-9][0-9]{{{len(digits)},}}"
    larger = (
        f"{digits[:at]}[{int(digit) + 1}-9]{'[0-9]' * (len(digits) - at - 1)}"
        for at, digit in enumerate(digits)
        if digit != "9"
    )
    return "|".join((*larger, longer))


def boots_older(facts: Facts, version: str, newest: str) -> str:
    """The commands that boot the newest installed kernel for which a driver release is known to build, in place of
    `newest`; "" if GRUB has no entry of such a kernel."""
    entries = facts(grub.entries)
    older = [release for release in entries if builds(version, series(release)) == "builds" and release != newest]
    if not older:
        return ""
    release = max(older, key=lambda release: [int(number) for number in re.findall(r"\d+", release)])
    once = f"sudo grub-reboot '{entries[release]}' && sudo reboot boots {release} once"
    return f"{once}; then sudo apt-get purge linux-image-{newest} makes it permanent"
