"""torch with all that it needs, locked by hash (torch_locks.yml), and the choice of a lock for GPUs."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Mapping

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue.compatibility import torch_wheel
from rigwright.catalogue.gpus import Architecture, Model
from rigwright.catalogue.loader import table
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError
from rigwright.core.files.disk_cache import cached_on_disk
from rigwright.core.numbers import numbers


class LockedWheel(Struct, frozen=True):
    """One wheel. `bytes`: its size. `pythons`: the Python versions (3.11) that take it."""

    name: str
    version: str
    bytes: int
    pythons: tuple[str, ...]
    sha256: str

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"sha256 {self.sha256!r}", "64 hexadecimal digits in lower case")
        if not re.fullmatch(r"[a-z0-9-]{1,80}", self.name) or not re.fullmatch(r"[0-9A-Za-z.+]{1,60}", self.version):
            raise ValueError(f"{self.name} {self.version}", "a package and its version")

    @property
    def requirement(self) -> str:
        """The line of a requirements file of pip."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


class Lock(Struct, frozen=True):
    """A line of wheels (cu126) at one version of torch, with everything that it needs."""

    torch: str
    wheels: tuple[LockedWheel, ...]

    @property
    def pythons(self) -> tuple[str, ...]:
        """The Python versions that this torch has wheels for, oldest first."""
        return tuple(
            sorted({python for one in self.wheels if one.name == "torch" for python in one.pythons}, key=numbers)
        )

    def of(self, python: str) -> tuple[LockedWheel, ...]:
        """The wheels for a Python version (3.11)."""
        return tuple(one for one in self.wheels if python in one.pythons)


class _Locks(Struct, frozen=True):
    as_of: datetime.date
    locks: dict[str, Lock]
    sources: dict[str, str]


@cached_on_disk
def locks() -> Mapping[str, Lock]:
    """All locks by the name of their line, oldest CUDA first. Raises InputError."""
    return table("torch_locks.yml", _Locks, "locks").locks


def kernels(line: str, torch: str) -> tuple[Architecture, ...]:
    """The architectures with kernels in the wheels of a line at a version of torch; () if unknown."""
    wheel = catalogue.torch_wheels().wheels.get(line)
    found: tuple[Architecture, ...] = ()
    for first, architectures in (wheel.architectures if wheel else {}).items():
        if numbers(torch)[:2] >= numbers(first):
            found = architectures
    return found


class TorchLock(Struct, frozen=True):
    """The torch for a host: its line (cu126) and its lock."""

    line: str
    lock: Lock


def torch_for(models: Collection[Model], driver: Driver, wanted: str = "auto") -> TorchLock:
    """The locked torch with kernels for all GPUs, oldest and newest, that runs on the driver.

    `wanted`: auto, or a version. Of several lines that of `compatibility.torch_wheel` is taken, else that of the newest
    torch. Raises HostError with the GPU or the driver that rules every one out.
    """
    named = {name: one for name, one in locks().items() if wanted in ("auto", one.torch)}
    if not named:
        have = ", ".join(f"{one.torch} ({name})" for name, one in locks().items())
        raise _error(
            f"the catalogue has no hashes of torch {wanted}",
            f"auto, or one of {have}",
            "torch: auto; or training.lock, a file with the hashes",
        )
    by_age = sorted(models, key=lambda model: numbers(model.compute_capability))
    fitting, reasons = {}, []
    for name, one in named.items():
        reason = _ruled_out(name, one, by_age, driver)
        if reason:
            reasons.append(f"torch {one.torch} ({name}) {reason}")
        else:
            fitting[name] = one
    if not fitting:
        fix = "torch: auto" if wanted != "auto" else _way_out(by_age)
        raise _error("; ".join(reasons), "a torch with kernels for every GPU that runs on the driver", fix)
    choice = torch_wheel(models, driver)
    best = (
        choice.name
        if choice and choice.name in fitting
        else max(fitting, key=lambda name: numbers(fitting[name].torch))
    )
    return TorchLock(best, fitting[best])


def _error(found: str, expected: str, fix: str) -> HostError:
    return HostError("training.torch", found, expected, fix)


def _ruled_out(line: str, lock: Lock, by_age: Collection[Model], driver: Driver) -> str:
    """Why the torch of a lock cannot be used on these GPUs, oldest first; "" if it can."""
    has = kernels(line, lock.torch)
    lacking = list(
        dict.fromkeys(f"{model.name} ({model.architecture})" for model in by_age if model.architecture not in has)
    )
    if lacking:
        return f"has no kernels for {' and '.join(lacking)}"
    branch = catalogue.branches().get(driver.branch)
    version = driver.version or (branch.versions[-1] if branch and branch.versions else "")
    least = catalogue.family_minimum(catalogue.torch_wheels().wheels[line].cuda)
    if not version:
        return f"cannot be judged: driver branch {driver.branch} is not in the catalogue"
    if numbers(version) < numbers(least):
        return f"needs driver {least} or newer, and {driver.version or f'branch {driver.branch}'} is older"
    return ""


def _way_out(by_age: Collection[Model]) -> str:
    """What an owner of GPUs without a torch does."""
    oldest = next(iter(by_age))
    if oldest.architecture == "Kepler":
        return (
            f"no wheel of torch 2.1 or newer has kernels for Kepler, and driver 470, the last for the {oldest.name}, "
            "is older than CUDA 12 needs:"
            " train on newer GPUs, or build torch from its source with CUDA 11"
        )
    return (
        "a newer driver branch where the GPUs run on it (invoke explain GPU); GPUs of one age in a machine; "
        "or training.lock, a file with hashes"
    )
