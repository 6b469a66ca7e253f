"""The catalogue: what is known of GPUs, driver branches, CUDA and rigs, as data with a source for every number."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rigwright.errors import InputError
from rigwright.yamlfile import Mapping as YamlMapping
from rigwright.yamlfile import did_you_mean, load, only_keys

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Branch:
    """A driver branch: its releases, oldest first, the highest CUDA its driver speaks, and its end of life."""

    name: str
    cuda: str
    eol: datetime.date
    versions: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """A GPU model. `last_branch` None: still supported by the newest."""

    key: str
    name: str
    pci_ids: tuple[str, ...]
    architecture: str
    clock_verbs: tuple[str, ...]
    module_flavours: tuple[str, ...]
    first_branch: int
    last_branch: int | None
    last_cuda: str | None


@dataclass(frozen=True)
class Rig:
    """A known machine: the models of its GPUs by position, its driver branch and CUDA toolkit."""

    key: str
    title: str
    gpus: tuple[str, ...]
    driver: str
    cuda: str


@dataclass(frozen=True)
class CudaRepository:
    """NVIDIA's repository: `url` holds {distribution} (ubuntu2204)."""

    url: str
    key: str
    fingerprint: str


_MODEL_KEYS = [
    "name",
    "pci_ids",
    "architecture",
    "compute_capability",
    "memory_mib",
    "memory_bandwidth_gb_s",
    "power_w",
    "clocks_mhz",
    "clock_verbs",
    "nvlink",
    "module_flavours",
    "first_branch",
    "last_branch",
    "last_cuda",
    "sources",
]
_NUMBERS = [
    "pci_ids",
    "compute_capability",
    "memory_mib",
    "memory_bandwidth_gb_s",
    "power_w",
    "clocks_mhz",
    "first_branch",
    "last_branch",
    "last_cuda",
]


def _mapping(path: Path) -> YamlMapping:
    document = load(path, f"catalogue/{path.relative_to(FOLDER)}")
    if not isinstance(document, YamlMapping):
        raise InputError(str(path), "no mapping", "KEY: VALUE")
    return document


def _sourced(document: YamlMapping, keys: list[str]) -> None:
    for key in keys:
        if key in document and key not in document["sources"]:
            raise InputError(
                document.where(key), f"'{key}' has no source", "one under sources:, 'assumed' where none is known"
            )


@lru_cache(maxsize=1)
def models() -> Mapping[str, Model]:
    """Every GPU model by its key (the file's name). Raises InputError."""
    return {path.stem: _model(path) for path in sorted((FOLDER / "gpus").glob("*.yml"))}


def _model(path: Path) -> Model:
    data = _mapping(path)
    only_keys(data, _MODEL_KEYS, "key of a GPU")
    _sourced(data, _NUMBERS)
    return Model(
        path.stem,
        data["name"],
        tuple(data["pci_ids"]),
        data["architecture"],
        tuple(data["clock_verbs"]),
        tuple(data["module_flavours"]),
        data["first_branch"],
        data["last_branch"],
        data["last_cuda"],
    )


@lru_cache(maxsize=64)
def model_of(device_id: str) -> Model | None:
    """The model of a PCI device id, or None when nobody has described it. Reads only files that hold the id."""
    for path in sorted((FOLDER / "gpus").glob("*.yml")):
        if f'"{device_id}"' in path.read_text(encoding="utf-8"):
            model = _model(path)
            if device_id in model.pci_ids:
                return model
    return None


@lru_cache(maxsize=1)
def branches() -> Mapping[str, Branch]:
    """Every driver branch by its name."""
    data = _mapping(FOLDER / "drivers.yml")
    return {
        name: Branch(name, body["cuda"], body["eol"], tuple(body["versions"]))
        for name, body in data["branches"].items()
    }


@lru_cache(maxsize=1)
def _cuda() -> YamlMapping:
    return _mapping(FOLDER / "cuda.yml")


def cuda_repository() -> CudaRepository:
    """NVIDIA's own repository."""
    data: dict[str, Any] = _cuda()["repository"]
    return CudaRepository(data["url"], data["key"], data["fingerprint"])


def toolkits() -> Mapping[str, str]:
    """CUDA toolkit versions (12.2) and the oldest driver each runs on."""
    return {name: body["minimum_driver"] for name, body in _cuda()["toolkits"].items()}


def rigs() -> tuple[str, ...]:
    """The names of all rigs."""
    return tuple(sorted(path.stem for path in (FOLDER / "rigs").glob("*.yml")))


@lru_cache(maxsize=64)
def rig(name: str, where: str) -> Rig:
    """The rig of that name. Raises InputError with the nearest one, and for a mistake in its file."""
    if name not in rigs():
        raise InputError(where, f"unknown rig '{name}'{did_you_mean(name, rigs())}", f"one of {', '.join(rigs())}")
    data = _mapping(FOLDER / "rigs" / f"{name}.yml")
    only_keys(data, ("title", "gpus", "driver", "cuda", "sources"), "key of a rig")
    known = [path.stem for path in (FOLDER / "gpus").glob("*.yml")]
    for model in data["gpus"]:
        if model not in known:
            raise InputError(
                data.where("gpus"), f"unknown model '{model}'{did_you_mean(model, known)}", "a file in gpus/"
            )
    return Rig(name, data["title"], tuple(data["gpus"]), data["driver"], data["cuda"])
