"""The CUDA toolkit."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright import catalogue
from rigwright.change import Change
from rigwright.errors import HostError
from rigwright.facts import Facts, archive
from rigwright.facts import apt as dpkg
from rigwright.facts import os as system
from rigwright.operations import apt
from rigwright.resolution import repository
from rigwright.versions import numbers
from rigwright.wanted import Cuda, CudaSource, Driver


def toolkit(facts: Facts, *, cuda: Cuda, driver: Driver, cuda_repository: CudaSource | None = None) -> Iterator[Change]:
    """The toolkit is installed (cuda-toolkit-12-2 for 12.2), under /usr/local/cuda-12.2, without bringing a driver of its own.

    Raises HostError when the driver's branch is too old for it, or no source has it.
    """
    known = catalogue.toolkits().get(cuda.toolkit)
    least = known.minimum_driver if known else ""
    branch = catalogue.branches().get(driver.branch)
    newest = driver.version or (branch.versions[-1] if branch else "")
    if least and newest and numbers(newest) < numbers(least):
        fits = [name for name, one in catalogue.toolkits().items() if numbers(one.minimum_driver) <= numbers(newest)]
        raise HostError(
            "cuda.toolkit",
            f"CUDA {cuda.toolkit} wants driver {least} or newer, and {driver.version or 'branch ' + driver.branch} is older",
            f"CUDA {fits[-1] if fits else '?'} or older",
        )
    name = f"cuda-toolkit-{cuda.toolkit.replace('.', '-')}"
    now, os_release = facts.all(dpkg.packages(name), system.os_release)
    if name in now and now[name].installed:
        return
    offered = facts(archive.offered((name,), repository(os_release, cuda_repository))).versions.get(name, ())
    if not offered:
        raise HostError(
            "cuda.toolkit",
            f"no source has {name}",
            "a toolkit of NVIDIA's repository",
            "apt-cache search cuda-toolkit, on the host",
        )
    yield Change(
        "change" if name in now else "add",
        name,
        now[name].version if name in now else "",
        offered[0].version,
        (apt.install([f"{name}={offered[0].version}"]),),
    )
