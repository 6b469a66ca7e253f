"""The torch of a Python interpreter, as onhost/torch_build.py describes it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

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


def runs_on(capability: str, architectures: Iterable[str]) -> bool:
    """Whether a GPU ("8.6") runs one of a build's architectures.

    sm_80 is machine code, for 8.0 and what is above it in the same major version; sm_90a for that GPU alone; sm_100f as
    sm_100. compute_80 is for the driver to translate, and runs on that and everything newer.
    """
    major, minor = (int(part) for part in capability.split("."))
    for name in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if match is None:
            continue
        made = int(match[2]), int(match[3])
        same = made == (major, minor)
        if match[4] == "a":
            fits = same
        elif match[1] == "compute" and match[4] == "":
            fits = made <= (major, minor)
        else:
            fits = made[0] == major and made[1] <= minor
        if fits:
            return True
    return False
