"""The CUDA toolkit."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.change import Change
from rigwright.compatibility import check_toolkit
from rigwright.errors import HostError
from rigwright.facts import Facts, Unavailable, archive, files
from rigwright.facts import apt as dpkg
from rigwright.facts import cuda as toolkits
from rigwright.facts import os as system
from rigwright.operations import apt, file
from rigwright.resolution import repository
from rigwright.shell import command
from rigwright.wanted import Cuda, CudaSource, Driver


def environment(facts: Facts, *, cuda: Cuda) -> Iterator[Change]:
    """The toolkit's compiler is on everybody's PATH from the next login on, and the dynamic linker finds its runtime.

    Known when the toolkit is installed.
    """
    home = f"/usr/local/cuda-{cuda.toolkit}"
    profile, linker = "/etc/profile.d/rigwright-cuda.sh", "/etc/ld.so.conf.d/rigwright-cuda.conf"
    release, found, _, _ = facts.all(
        toolkits.nvcc(cuda.toolkit), toolkits.runtime(cuda.toolkit), files.file(profile), files.file(linker)
    )
    if not release:
        raise Unavailable("known when the toolkit is installed")
    path = f'# Written by rigwright.\ncase ":$PATH:" in *:{home}/bin:*) ;; *) PATH="{home}/bin:$PATH";; esac\n'
    yield from file.differing(facts, profile, path.encode())
    if not found:
        yield from file.differing(facts, linker, f"{home}/targets/x86_64-linux/lib\n".encode())
        yield Change("run", "ldconfig", "does not find libcudart", "finds it", (command("ldconfig"),))


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
