"""NVIDIA Container Toolkit: its repository, its packages, and the release that a host has or will have."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from rigwright.core.desired import CudaSource
from rigwright.core.errors import HostError
from rigwright.core.numbers import numbers
from rigwright.driver.apt_pin import pin_path, read_pins
from rigwright.facts import Facts, files
from rigwright.facts.apt import archive as apt_archive
from rigwright.facts.apt import sources as apt_sources
from rigwright.features.containers.variables import LATEST, Containers

PIN = "container-toolkit"
"""The name of its pin, its source and its key in rigwright's files."""
PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
"""The packages of a release, all of one version (packaging/debian/control of NVIDIA/nvidia-container-toolkit)."""
URL = "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"
KEY_URL = "https://nvidia.github.io/libnvidia-container/gpgkey"
FINGERPRINT = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
"""NVIDIA CORPORATION (Open Source Projects), the key of that repository since 2017 (three independent setups that pin
it)."""
OLDEST = "1.18.0"
"""The first release whose own units make the specification again at boot and after a driver change (its
deployments/systemd)."""


class Release(Struct, frozen=True):
    """A release of the toolkit. `version`: of its packages, 1.18.1-1. `pinned`: the host's pin says so, and no source
    was asked."""

    version: str
    pinned: bool


def repository(given: CudaSource | None) -> apt_archive.Repository:
    """NVIDIA's repository of the toolkit, or the mirror from the inventory."""
    if given is None:
        return apt_archive.Repository(URL, KEY_URL, FINGERPRINT)
    return apt_archive.Repository(given.url.rstrip("/"), given.key or KEY_URL, given.fingerprint or FINGERPRINT)


def foreign_sources(facts: Facts, remote: apt_archive.Repository) -> list[apt_sources.Source]:
    """The host's own sources of that repository, which rigwright did not write."""
    every = facts(apt_sources.sources)
    return [
        one for one in every if not one.ours and replace(one, url=one.url.replace("$(ARCH)", "amd64")).is_of(remote.url)
    ]


ASKED = (files.file(pin_path(PIN)), apt_sources.sources)
"""The facts that `resolved` needs first."""


def pinned(facts: Facts, containers: Containers) -> Release | None:
    """The release in the host's pin if it is the wanted one, else None."""
    now = facts(files.file(pin_path(PIN)))
    versions = {pin.version for pin in (read_pins(now.text) if now else ()) if pin.version}
    if len(versions) != 1:
        return None
    (version,) = versions
    fits = containers.toolkit == LATEST or _upstream(version) == containers.toolkit
    return Release(version, True) if fits and re.fullmatch(r"[0-9.]+-[0-9]+", version) else None


def resolved(facts: Facts, containers: Containers, given: CudaSource | None) -> Release:
    """The release of the pin, or else the wanted one of the repository. Raises HostError, with those that it has, if it
    lacks it."""
    facts.all(*ASKED)
    if (now := pinned(facts, containers)) is not None:
        return now
    remote = repository(given)
    theirs = foreign_sources(facts, remote)
    offered = facts(apt_archive.offered(PACKAGES, None if theirs else remote)).versions
    have = [
        candidate.version
        for candidate in offered.get(PACKAGES[0], ())
        if all(candidate.version in {one.version for one in offered.get(name, ())} for name in PACKAGES)
    ]
    fit = [version for version in have if numbers(_upstream(version)) >= numbers(OLDEST)]
    wanted = [version for version in fit if containers.toolkit in (LATEST, _upstream(version))]
    if wanted:
        return Release(wanted[0], False)
    there = ", ".join(dict.fromkeys(map(_upstream, fit[:6]))) or "none"
    found = f"no source has release {containers.toolkit} of NVIDIA Container Toolkit"
    if containers.toolkit in map(_upstream, have):
        found = (
            f"release {containers.toolkit} of NVIDIA Container Toolkit has no unit that renews the CDI specification"
        )
    todo = (
        f"containers: {{toolkit: '{_upstream(fit[0])}'}}"
        if fit
        else f"a mirror that has one: container_repository; {remote.url}"
    )
    raise HostError("containers", found, f"latest, or one of {there} in {remote.url}", todo)


def _upstream(version: str) -> str:
    return version.split(":")[-1].rpartition("-")[0]
