"""NVIDIA's Data Center GPU Manager: its packages in NVIDIA's repository, and the release that a host has or will
have."""

from __future__ import annotations

import re

from rigwright import catalogue
from rigwright.core.desired import CudaSource, Driver
from rigwright.core.errors import HostError
from rigwright.driver.apt_pin import pin_path, read_pins
from rigwright.driver.resolve import repository
from rigwright.facts import Facts, files, system
from rigwright.facts.apt import archive as apt_archive

PIN = "dcgm"
"""The name of its pin in rigwright's files."""
CORE = "datacenter-gpu-manager-4-core"
NEWEST_CUDA = 13
"""The newest major version of CUDA for which DCGM 4 has a package (assumed: its documentation in 2026)."""


def packages(driver: Driver) -> tuple[str, ...]:
    """The packages for a driver: the core, and the plugins for the major version of CUDA that the branch has."""
    branch = catalogue.branches().get(driver.branch)
    major = int((branch.cuda if branch and branch.cuda else f"{NEWEST_CUDA}.0").partition(".")[0])
    return (CORE, f"datacenter-gpu-manager-4-cuda{min(major, NEWEST_CUDA)}")


ASKED = (files.file(pin_path(PIN)), system.os_release)
"""The facts that `wanted_release` needs first."""


def wanted_release(facts: Facts, driver: Driver, given: CudaSource | None) -> str:
    """The version of the pin, otherwise the newest one of NVIDIA's repository. Raises HostError if that has none."""
    now, os_release = facts.all(*ASKED)
    names = packages(driver)
    pins = [pin for pin in (read_pins(now.text) if now else ()) if pin.version and set(names) <= set(pin.packages)]
    versions = {pin.version for pin in pins}
    if len(versions) == 1 and re.fullmatch(r"[0-9:.]+-[0-9]+", pins[0].version):
        return pins[0].version
    remote = repository(os_release, given)
    offered = facts(apt_archive.offered(names, remote)).versions
    of_cuda = {candidate.version for candidate in offered.get(names[1], ())}
    for candidate in offered.get(CORE, ()):
        if candidate.version in of_cuda:
            return candidate.version
    problem = f"{remote.url} has no {' and '.join(names)} of one version"
    fix = "cuda_repository: a mirror with these packages, or leave `dcgm` out"
    raise HostError("dcgm", problem, "NVIDIA's repository, or a mirror that has them", fix)
