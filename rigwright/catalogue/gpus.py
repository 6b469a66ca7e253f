"""GPU models, one file each in gpus/."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from msgspec import Struct

from rigwright.catalogue import loader
from rigwright.catalogue.loader import document, record
from rigwright.core.errors import InputError
from rigwright.core.files.disk_cache import cached_on_disk, read_or_make
from rigwright.core.schema import BusId, PciId, Release

Architecture = Literal["Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"]
Verb = Literal["application", "locked_graphics", "locked_memory"]
Flavour = Literal["proprietary", "open"]
VENDOR = "10de:"
"""NVIDIA's PCI vendor id, the beginning of the key of a drafted model."""


class Power(Struct, frozen=True):
    """Power of one GPU, W. Boards of one model differ; values that the GPU reports have precedence.

    `peak`: the highest momentary power that was observed, at the default limit and full clocks (None: unknown).
    """

    default: float | None
    min: float | None
    max: float | None
    peak: float | None = None

    def __post_init__(self) -> None:
        known = [watts for watts in (self.min, self.default, self.max) if watts is not None]
        if known != sorted(known) or any(not 10 <= watts <= 2500 for watts in known):
            raise ValueError(
                f"{self.min}, {self.default}, {self.max}", "min, default and max in watts, in that order of size"
            )
        if self.peak is not None and not (self.default or 10) <= self.peak <= 5000:
            raise ValueError(f"peak {self.peak:g}", "watts that one GPU was seen to draw, not below its default")


class Speed(Struct, frozen=True):
    """A measured speed loss in percent with a power limit, a graphics clock, or both."""

    power_limit_w: int | None
    graphics_mhz: int | None
    cost_percent: float

    def __post_init__(self) -> None:
        if self.power_limit_w is None and self.graphics_mhz is None:
            raise ValueError("no power_limit_w and no graphics_mhz", "one of them, or both")
        if not 0 <= self.cost_percent < 100:
            raise ValueError(f"cost_percent {self.cost_percent:g}", "percent of the speed that is lost, such as 13")


class ApplicationClocks(Struct, frozen=True):
    """A pair of clocks, MHz."""

    memory: int
    graphics: int


class ClocksMhz(Struct, frozen=True):
    """Supported clocks, MHz: every memory clock, highest first; graphics clocks from min to max by step."""

    memory: tuple[int, ...]
    graphics_max: float | None
    graphics_min: float | None = None
    graphics_step: float | None = None
    default_application: ApplicationClocks | None = None

    def __post_init__(self) -> None:
        if list(self.memory) != sorted(self.memory, reverse=True) or any(
            not 100 <= clock <= 20000 for clock in self.memory
        ):
            raise ValueError(f"memory {list(self.memory)}", "memory clocks in MHz, highest first")
        pair = self.default_application
        if pair and pair.memory not in self.memory:
            raise ValueError(f"application clocks with memory {pair.memory}", f"one of {list(self.memory)}")


class NvLink(Struct, frozen=True):
    """NVLink of one GPU: links, and GB/s of each in one direction."""

    generation: int
    links: int
    gb_s_per_link: float


class PeerToPeer(Struct, frozen=True):
    """Peer access that the unpatched driver permits between two GPUs of this model, over PCIe and over NVLink.

    `measure`: reports differ; only a measurement on the host is reliable.
    """

    pcie: Literal["granted", "denied", "measure"]
    nvlink: Literal["granted", "none"] = "none"


class Tflops(Struct, frozen=True):
    """What the chip can compute at most, TFLOPS at a clock of `at_mhz`: FP16 and TF32 with tensor cores, FP32 sums and
    without sparsity, FP64 with tensor cores where it has them for FP64, as cuBLAS does. None: the chip has no units for
    it."""

    fp32: float
    tf32: float | None
    fp16: float | None
    fp64: float
    at_mhz: float

    def __post_init__(self) -> None:
        rates = [rate for rate in (self.fp32, self.tf32, self.fp16, self.fp64) if rate is not None]
        if any(not 0.01 <= rate <= 10000 for rate in rates) or not 500 <= self.at_mhz <= 4000:
            raise ValueError(f"tflops {rates} at {self.at_mhz:g} MHz", "TFLOPS, such as 15.7 at 1530 MHz")


class Idle(Struct, frozen=True):
    """An idle GPU with persistence on: performance state and W (None: unknown)."""

    state: Literal["P0", "P8", "P12"]
    power_w: float | None = None


class Model(Struct, frozen=True):
    """A GPU model. `last_branch` and `last_cuda` are None if the newest versions support it.

    `fabric`: nvswitch (machines with this model always have NVSwitches and need the fabric manager), either, or none.
    `mig`: its profiles of GPU instances, without those of media engines and graphics (+me, +gfx); () if it has no MIG,
    and if it is drafted. `variant` distinguishes models with the same name. `speed`: measured speed losses with limits.
    `tflops`: None where nobody has looked it up. `memory_mib`, `memory_bandwidth_gb_s`, `tensor_cores` and `idle` are
    None only for a model that is drafted (`described` is False), whose NVLinks are not known either.
    """

    name: str
    pci_ids: tuple[PciId, ...]
    architecture: Architecture
    compute_capability: Release
    memory_mib: int | None
    memory_bandwidth_gb_s: float | None
    tensor_cores: int | None
    power_w: Power
    clocks_mhz: ClocksMhz
    clock_verbs: tuple[Verb, ...]
    nvlink: NvLink | None
    p2p: PeerToPeer
    idle: Idle | None
    module_flavours: tuple[Flavour, ...]
    first_branch: int
    last_branch: int | None
    last_cuda: Release | None
    sources: dict[str, str]
    fabric: Literal["none", "either", "nvswitch"] = "none"
    mig: tuple[str, ...] = ()
    variant: str = ""
    speed: tuple[Speed, ...] = ()
    tflops: Tflops | None = None
    key: str = ""

    @property
    def label(self) -> str:
        """The name, with the variant if several models have that name."""
        return f"{self.name} {self.variant}".strip()

    @property
    def described(self) -> bool:
        """Whether a file of gpus/ describes it. If not, it was drafted from NVIDIA's list, and its key is 10de:ID."""
        return not self.key.startswith(VENDOR)

    def __post_init__(self) -> None:
        if not self.pci_ids or not self.module_flavours:
            raise ValueError("no pci_ids or no module_flavours", "at least one each")
        if self.memory_mib is not None and not 1024 <= self.memory_mib < 1 << 20:
            raise ValueError(f"memory_mib {self.memory_mib}", "MiB: 16384 for 16 GB")
        if any(not re.fullmatch(r"[1-7]g\.\d{1,3}gb", profile) for profile in self.mig):
            raise ValueError(f"mig {list(self.mig)}", "profiles as nvidia-smi mig -lgip names them, such as 3g.20gb")
        bandwidth = self.memory_bandwidth_gb_s
        if bandwidth is not None and not 50 <= bandwidth <= 20000:
            raise ValueError(f"memory_bandwidth_gb_s {bandwidth:g}", "GB/s: 900 for a V100")
        if self.last_branch is not None and self.last_branch < self.first_branch:
            raise ValueError(f"last_branch {self.last_branch} before first_branch {self.first_branch}", "first <= last")


def _paths() -> list[Path]:
    return sorted((loader.FOLDER / "gpus").glob("*.yml"))


def keys() -> list[str]:
    """The names of all GPU models."""
    return [path.stem for path in _paths()]


@cached_on_disk
def models() -> Mapping[str, Model]:
    """All GPU models by key (file name). Raises InputError for an invalid file, and if two have the same PCI id."""
    by_key: dict[str, Model] = {}
    owner: dict[str, str] = {}
    for path in _paths():
        model = record(path, Model)
        for device_id in model.pci_ids:
            if device_id in owner:
                raise InputError(
                    document(path).where("pci_ids"),
                    f"PCI id {device_id} is also in catalogue/gpus/{owner[device_id]}.yml",
                    "each id in one file",
                )
            owner[device_id] = path.stem
        by_key[path.stem] = model
    return by_key


@lru_cache(maxsize=64)
def model(key: str) -> Model:
    """The model with a key of `keys()`; reads only its file. Raises InputError if the file is invalid."""
    return read_or_make(f"gpus.model.{key}", lambda: record(loader.FOLDER / "gpus" / f"{key}.yml", Model))


@lru_cache(maxsize=64)
def model_of(device_id: str) -> Model | None:
    """The model with a PCI device id of four hexadecimal digits, or None. Reads only files that contain the id."""
    if not re.fullmatch(r"[0-9a-f]{4}", device_id):
        return None

    def read() -> Model | None:
        texts = ((path, path.read_text(encoding="utf-8")) for path in _paths())
        candidates = (record(path, Model) for path, text in texts if device_id in text)
        return next((model for model in candidates if device_id in model.pci_ids), None)

    return read_or_make(f"gpus.model_of.{device_id}", read)


def setting_names(known: Model | None, at: str, uuid: str, slots: Mapping[BusId, str] | None) -> tuple[str, str, str]:
    """The names by which the inventory may set something for a GPU, the least specific first: model, position, UUID.
    `at`: its bus id."""
    return known.key if known else "", (slots or {}).get(BusId(at), ""), uuid
