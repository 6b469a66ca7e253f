"""The CUDA toolkit."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.change import Change
from rigwright.compatibility import check_toolkit
from rigwright.errors import HostError
from rigwright.facts import Facts, archive
from rigwright.facts import apt as dpkg
from rigwright.facts import os as system
from rigwright.operations import apt
from rigwright.resolution import repository
from rigwright.wanted import Cuda, CudaSource, Driver


def toolkit(facts: Facts, *, cuda: Cuda, driver: Driver, cuda_repository: CudaSource | None = None) -> Iterator[Change]:
    """The toolkit is installed (cuda-toolkit-12-2 for 12.2), under /usr/local/cuda-12.2, without bringing a driver of its own.

    Raises HostError when the driver's branch is too old for it, or no source has it.
    """
    check_toolkit(driver, cuda.toolkit)
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
