"""What a host should have, as types: the inventory's `driver`, `cuda`, `limits` and `cuda_repository`."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Literal

from rigwright.typed import BusId, KernelWord, Release
from rigwright.yamlfile import did_you_mean


@dataclass(frozen=True)
class Driver:
    """A driver branch ('535'), or one `version` of it; `source`: auto, distribution, cuda, or a directory of .debs on the host.

    `flavour` of the kernel module: auto (what the GPUs want), proprietary, or open. `modules`: dkms builds it on the host,
    or it comes prebuilt and signed (Ubuntu), and the kernel is held with it; auto is dkms, and prebuilt with Secure Boot on.
    """

    branch: str
    version: str = ""
    source: str = "auto"
    flavour: Literal["auto", "proprietary", "open"] = "auto"
    modules: Literal["auto", "dkms", "prebuilt"] = "auto"

    def __post_init__(self) -> None:
        if self.source not in ("auto", "distribution", "cuda") and not re.fullmatch(r"/[^\s'\"]+", self.source):
            hint = did_you_mean(self.source, ("auto", "distribution", "cuda"))
            raise ValueError(
                f"source '{self.source}'{hint}",
                "auto, distribution, cuda, or a directory on the host that begins with /",
            )
        if self.modules == "prebuilt" and self.source == "cuda":
            raise ValueError(
                "modules prebuilt, source cuda", "NVIDIA's repository has none: source auto or distribution"
            )
        if self.branch.count(".") and not self.version:
            object.__setattr__(self, "version", self.branch)
        object.__setattr__(self, "branch", self.branch.split(".")[0])
        if not re.fullmatch(r"\d{3}", self.branch) or (
            self.version and not re.fullmatch(rf"{self.branch}(\.\d+)+", self.version)
        ):
            found = f"branch '{self.branch}', version '{self.version}'"
            raise ValueError(found, "a branch such as '535', or a version of it such as '535.183.01'")


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit ('12.2')."""

    toolkit: Release


@dataclass(frozen=True)
class CudaSource:
    """A repository laid out as NVIDIA's: a mirror inside the house, say. Its key must have the fingerprint."""

    url: str
    key: str = ""
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"(https?|file)://[^\s'\"]+", self.url):
            raise ValueError(f"url '{self.url}'", "http://..., https://... or file:///...")
        object.__setattr__(self, "fingerprint", self.fingerprint.replace(" ", "").upper())
        if self.fingerprint and not re.fullmatch(r"[0-9A-Fa-f]{40}", self.fingerprint):
            raise ValueError(f"fingerprint '{self.fingerprint}'", "40 hexadecimal digits, without spaces")


@dataclass(frozen=True)
class Clocks:
    """Application clocks: the pair that `nvidia-smi -ac MEMORY,GRAPHICS` takes."""

    memory_mhz: int
    graphics_mhz: int

    def __post_init__(self) -> None:
        if self.memory_mhz <= 0 or self.graphics_mhz <= 0:
            raise ValueError(f"{self.memory_mhz},{self.graphics_mhz} MHz", "two clocks in MHz, such as 877 and 1005")


@dataclass(frozen=True)
class GpuLimits:
    """What a GPU is held to; None is left as it is. A locked clock is a range, [min, max] MHz."""

    persistence: bool | None = None
    power_limit_w: int | None = None
    application_clocks: Clocks | None = None
    locked_graphics_mhz: tuple[int, int] | None = None
    locked_memory_mhz: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.power_limit_w is not None and not 0 < self.power_limit_w <= 2000:
            raise ValueError(f"power_limit_w {self.power_limit_w}", "watts of one GPU, such as 200")
        for name in ("locked_graphics_mhz", "locked_memory_mhz"):
            span = getattr(self, name)
            if span is not None and not 0 < span[0] <= span[1] <= 20000:
                raise ValueError(f"{name} {list(span)}", "[min, max] in MHz, such as [210, 1400]")

    def over(self, below: GpuLimits) -> GpuLimits:
        """These, and what they leave open as `below` has it."""
        names = [field.name for field in dataclasses.fields(GpuLimits)]
        picked = {name: getattr(self if getattr(self, name) is not None else below, name) for name in names}
        return GpuLimits(**picked)


@dataclass(frozen=True)
class Limits(GpuLimits):
    """What every GPU of a host is held to, and under `gpus` what differs: by model (rtx-3090), position or UUID.

    The nearest counts for each limit: UUID before position before model before the host's own.
    """

    gpus: dict[str, GpuLimits] = field(default_factory=dict)

    def of(self, *names: str) -> GpuLimits:
        """The limits of a GPU that goes by these names, the farthest first (model, position, UUID)."""
        found: GpuLimits = GpuLimits().over(self)
        for name in names:
            found = self.gpus.get(name, GpuLimits()).over(found)
        return found


VARIABLES = {
    "driver": Driver,
    "cuda": Cuda,
    "limits": Limits,
    "cuda_repository": CudaSource,
    "kernel_cmdline": list[KernelWord],
    "slots": dict[BusId, str],
    "rig": str,
}
"""The inventory variables that rigwright knows, and their types."""
