"""NVIDIA Container Toolkit: its repository, its packages, and the release that a host has or will have."""

from __future__ import annotations

import re

from msgspec.structs import replace

from rigwright.core.desired import CudaSource
from rigwright.core.errors import HostError
from rigwright.core.numbers import numbers
from rigwright.driver.apt_pin import pin_path, read_pins
from rigwright.facts import Facts, files
from rigwright.facts.apt import archive as apt_archive, sources as apt_sources
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


def repository(given: CudaSource | None) -> apt_archive.Repository:
    """NVIDIA's repository of the toolkit, or the mirror from the inventory."""
    if given is None:
        return apt_archive.Repository(URL, KEY_URL, FINGERPRINT)
    return apt_archive.Repository(given.url.rstrip("/"), given.key or KEY_URL, given.fingerprint or FINGERPRINT)


def foreign_sources(facts: Facts, remote: apt_archive.Repository) -> list[apt_sources.Source]:
    """The host's own sources of that repository, which rigwright did not write."""
    others = [source for source in facts(apt_sources.sources) if not source.ours]
    return [each for each in others if replace(each, url=each.url.replace("$(ARCH)", "amd64")).is_of(remote.url)]


ASKED = (files.file(pin_path(PIN)), apt_sources.sources)
"""The facts that `wanted_release` needs first."""


def pinned_release(facts: Facts, containers: Containers) -> str | None:
    """The version in the host's pin, such as 1.18.1-1; None if it does not fit `containers`."""
    now = facts(files.file(pin_path(PIN)))
    versions = {pin.version for pin in (read_pins(now.text) if now else ()) if pin.version}
    if len(versions) != 1:
        return None
    (version,) = versions
    fits = containers.toolkit in (LATEST, _upstream(version))
    return version if fits and re.fullmatch(r"[0-9.]+-[0-9]+", version) else None


def wanted_release(facts: Facts, containers: Containers, given: CudaSource | None) -> str:
    """The version of the pin, otherwise the wanted one of the repository. Raises HostError with the versions there."""
    facts.all(*ASKED)
    if (now := pinned_release(facts, containers)) is not None:
        return now
    remote = repository(given)
    theirs = foreign_sources(facts, remote)
    offered = facts(apt_archive.offered(PACKAGES, None if theirs else remote)).versions
    versions = [[candidate.version for candidate in offered.get(name, ())] for name in PACKAGES]
    have = [version for version in versions[0] if all(version in others for others in versions)]
    fit = [version for version in have if numbers(_upstream(version)) >= numbers(OLDEST)]
    wanted = [version for version in fit if containers.toolkit in (LATEST, _upstream(version))]
    if wanted:
        return wanted[0]
    release = f"release {containers.toolkit} of NVIDIA Container Toolkit"
    problem = f"no source has {release}"
    if containers.toolkit in map(_upstream, have):
        problem = f"{release} has no unit that renews the CDI specification"
    there = ", ".join(dict.fromkeys(map(_upstream, fit[:6]))) or "none"
    fix = f"a mirror that has one: container_repository; {remote.url}"
    if fit:
        fix = f"containers: {{toolkit: '{_upstream(fit[0])}'}}"
    raise HostError("containers", problem, f"latest, or one of {there} in {remote.url}", fix)


def _upstream(version: str) -> str:
    return version.split(":")[-1].rpartition("-")[0]
