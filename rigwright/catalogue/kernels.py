"""The kernels for which a driver's module builds, from `builds_to_kernel` in drivers.yml.

A driver as NVIDIA ships it. A distribution's own package can carry patches for newer kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from rigwright.catalogue.drivers import branches
from rigwright.core.files.disk_cache import cached_on_disk
from rigwright.core.numbers import numbers

Answer = Literal["builds", "fails", "unknown"]


def series(release: str) -> str:
    """The series of a kernel release: 6.8 of 6.8.0-31-generic; "" when it is not the release of a kernel."""
    match = re.match(r"\d+\.\d+", release)
    return match[0] if match else ""


@lru_cache(maxsize=4096)
def builds(version: str, kernel: str) -> Answer:
    """Whether the module of a driver release builds for a kernel series (6.8); unknown beyond the kernels of the table.

    A release between two of the table builds for what the older one does, and not for what the newer one does not.
    """
    branch = branches().get(version.partition(".")[0])
    table = branch.builds_to_kernel if branch else {}
    older = [last for name, last in table.items() if numbers(name) <= numbers(version)]
    newer = [last for name, last in table.items() if numbers(name) >= numbers(version)]
    if older and numbers(kernel) <= numbers(older[-1]):
        return "builds"
    tried = numbers(kernel) <= numbers(newest_tried())
    return "fails" if tried and newer and numbers(kernel) > numbers(newer[0]) else "unknown"


@cached_on_disk
def newest_tried() -> str:
    """The newest kernel series in the table."""
    return max((last for branch in branches().values() for last in branch.builds_to_kernel.values()), key=numbers)


def any_builds(versions: Iterable[str], kernel: str) -> Answer:
    """The best answer of several releases of a branch; unknown for none."""
    answers = {builds(version, kernel) for version in versions}
    best: tuple[Answer, ...] = ("builds", "unknown", "fails")
    return next((answer for answer in best if answer in answers), "unknown")


def newest_kernel(versions: Iterable[str]) -> str:
    """The newest kernel series for which one of the releases is known to build; "" when none is known."""
    known: set[str] = set()
    for version in versions:
        branch = branches().get(version.partition(".")[0])
        table = branch.builds_to_kernel if branch else {}
        known |= {last for name, last in table.items() if numbers(name) <= numbers(version)}
    return max(known, key=numbers, default="")


@lru_cache(maxsize=64)
def first_builders(kernel: str) -> Mapping[str, str]:
    """By branch, oldest first, the first release that is known to build for a kernel series."""
    return {
        name: first
        for name, branch in branches().items()
        if (first := next((version for version in branch.versions if builds(version, kernel) == "builds"), ""))
    }
