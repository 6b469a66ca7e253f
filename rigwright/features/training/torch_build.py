"""The torch of a Python interpreter, as host/torch_build.py describes it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from rigwright.core.numbers import numbers
from rigwright.core.schema import Release


class TorchGpu(Struct, frozen=True):
    """A GPU in torch's list."""

    name: str
    capability: Release


class TorchBuild(Struct, frozen=True):
    """The torch of an interpreter. `cuda`, `nccl` None: built without. `missing`: torch is not installed. `error`: from
    the import or from the start of CUDA. `architectures`: sm_70; compute_90 for PTX, which the driver compiles."""

    python: str
    torch: str | None
    cuda: str | None
    hip: str | None
    nccl: str | None
    architectures: tuple[str, ...]
    gpus: tuple[TorchGpu, ...]
    error: str | None
    missing: bool


class ProvedGpu(TorchGpu, frozen=True):
    """A GPU with its product. `right`: it was exact; None: it failed with `error`."""

    right: bool | None
    error: str | None


class ProvedBuild(TorchBuild, frozen=True):
    """The torch of an environment, which has made a product on each GPU."""

    gpus: tuple[ProvedGpu, ...]


def runs_on(capability: str, architectures: Iterable[str]) -> bool:
    """Whether a GPU of compute capability "8.6" runs one of a build's architectures.

    sm_80 and sm_100f are machine code for that and newer GPUs of the same major version, sm_90a for that GPU alone. The
    driver compiles compute_80 for that and all newer GPUs.
    """
    gpu = tuple(map(int, capability.split(".")))
    for match in filter(None, (re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name) for name in architectures)):
        made = int(match[2]), int(match[3])
        compiled = match[1] == "compute" and not match[4]
        if made == gpu or (match[4] != "a" and made < gpu and (compiled or made[0] == gpu[0])):
            return True
    return False


def kernels(capabilities: Iterable[str]) -> str:
    """The architectures of GPUs: `sm_70, sm_86`."""
    return ", ".join(f"sm_{each.replace('.', '')}" for each in sorted(set(capabilities), key=numbers))
