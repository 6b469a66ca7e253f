"""Rigs: known machine models with their expected properties, one file each in rigs/."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from rigwright.catalogue import cards, drivers, gpus, loader
from rigwright.catalogue.devices import version as devices_version
from rigwright.catalogue.loader import document, record
from rigwright.core.desired import Limits
from rigwright.core.errors import InputError
from rigwright.core.files.disk_cache import read_or_make
from rigwright.core.schema import Branch, BusId, Release
from rigwright.core.yaml_source import Mapping as YamlMapping, misspelt

Kind = Literal["nv1", "nv2", "nv3", "nv4", "nv12", "nv18", "nvswitch", "pcie", "host", "x1"]
"""The connection of two GPUs: a number of NVLinks, NVSwitch, peer access over PCIe, host memory, a PCIe x1 slot."""


class Lanes(Struct, frozen=True):
    """A slot with fewer lanes than its card: PCIe width and generation."""

    width: Literal[1, 2, 4, 8, 16]
    generation: int


class Supply(Struct, frozen=True):
    """A type of power supply: power of each, number, output voltage.

    `shared`: all of them feed one rail. `connector`: the type of the GPU power connectors, `connector_a`: their rated
    current in amperes, `connectors`: their number on all supplies. `feeds`: the positions that it powers, and `base`
    for the rest of the machine; a supply without `feeds` powers everything that no other supply feeds.
    """

    watts: int
    count: int = 1
    volts: float = 12.0
    shared: bool = False
    connector: str = ""
    connector_a: float | None = None
    connectors: int = 1
    feeds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 50 <= self.watts <= 20000:
            raise ValueError(f"watts {self.watts}", "watts of one supply, such as 1100")
        for name, least in (("count", self.count), ("connectors", self.connectors)):
            if not 1 <= least <= 64:
                raise ValueError(f"{name} {least}", "how many there are, from 1 on")
        if not 5 <= self.volts <= 60 or (self.connector_a is not None and not 1 <= self.connector_a <= 1000):
            raise ValueError(
                f"volts {self.volts:g}, connector_a {self.connector_a}", "volts such as 12, amperes such as 60"
            )
        if len(set(self.feeds)) < len(self.feeds):
            raise ValueError(f"feeds {', '.join(self.feeds)}", "each position once")


class Peers(Struct, frozen=True):
    """The expected connection of the GPUs (`path`) and the reason."""

    path: Literal["nvlink", "nvswitch", "pcie", "none", "measure"]
    why: str = ""


class Scaling(Struct, frozen=True):
    """Data-parallel training: the speed-up with `gpus` GPUs."""

    gpus: int
    speed_up: float

    def __post_init__(self) -> None:
        if not 0 < self.speed_up <= self.gpus:
            raise ValueError(
                f"{self.speed_up:g} times with {self.gpus} GPUs", "at most as many times as there are GPUs"
            )


class Rig(Struct, frozen=True):
    """A known machine.

    `gpus`: the model of each position, in order, 10de:ID for one that gpus/ does not describe. `gpu_power_w`: the
    default power limit of the GPU at a position, W, where the catalogue does not know it. `slots`: positions by bus id,
    where they are known. `links`: NVLinks of a pair ('SXM2-1 SXM2-2'). `lanes`: slots narrower than the card. `boards`:
    the machine's names in DMI. `bandwidth_gb_s`: bandwidth of a large copy in one direction, by kind of path.
    `all_reduce_gb_s`: NCCL's bus bandwidth.
    """

    title: str
    gpus: dict[str, str]
    driver: Branch
    cuda: Release
    p2p: Peers
    sources: dict[str, str]
    variant_of: str = ""
    boards: tuple[str, ...] = ()
    cpu: str = ""
    memory_gib: int | None = None
    slots: dict[BusId, str] = field(default_factory=dict)
    links: dict[str, int] = field(default_factory=dict)
    nvswitches: int = 0
    lanes: dict[str, Lanes] = field(default_factory=dict)
    supplies: tuple[Supply, ...] = ()
    base_load_w: int | None = None
    gpu_power_w: dict[str, int] = field(default_factory=dict)
    limits: Limits | None = None
    bandwidth_gb_s: dict[Kind, float] = field(default_factory=dict)
    all_reduce_gb_s: float | None = None
    scaling: Scaling | None = None
    notes: tuple[str, ...] = ()
    key: str = ""

    def __post_init__(self) -> None:
        if not self.gpus or any(not position or " " in position for position in self.gpus):
            raise ValueError(f"gpus {dict(self.gpus)}", "POSITION: MODEL for every GPU, positions without spaces")
        if (self.nvswitches > 0) != (self.p2p.path == "nvswitch"):
            raise ValueError(f"{self.nvswitches} nvswitches and the path {self.p2p.path}", "both, or neither")
        watts = next((watts for watts in self.gpu_power_w.values() if not 10 <= watts <= 2500), None)
        if watts is not None:
            raise ValueError(f"gpu_power_w {watts}", "watts of one GPU at its default limit, from 10 to 2500")

    @property
    def models(self) -> tuple[str, ...]:
        """The model of every GPU, by position."""
        return tuple(self.gpus.values())

    @property
    def pairs(self) -> Iterator[tuple[str, str, int]]:
        """Two positions and their number of NVLinks."""
        return ((*pair.split(), links) for pair, links in self.links.items())  # type: ignore[misc]


def all_rigs() -> tuple[str, ...]:
    """The names of all rigs."""
    return tuple(sorted(path.stem for path in (loader.FOLDER / "rigs").glob("*.yml")))


def rig(name: str, where: str, folder: Path | None = None) -> Rig:
    """The rig with that name from `folder` (the user's own rigs) or the catalogue. `where` is used in errors.

    Raises InputError for an unknown name (with the most similar one), and for an error in the rig's file.
    """
    files = _files(folder)
    if name not in files:
        raise misspelt(where, f"unknown rig '{name}'", name, sorted(files))
    return _read(name, folder, files[name].stat().st_mtime_ns)


def _files(folder: Path | None) -> dict[str, Path]:
    """The files of all rigs by name; those in `folder` have precedence."""
    own = {path.stem: path for path in sorted(folder.glob("*.yml"))} if folder else {}
    return {**own, **{name: loader.FOLDER / "rigs" / f"{name}.yml" for name in all_rigs() if name not in own}}


@lru_cache(maxsize=64)
def _read(name: str, folder: Path | None, _changed_ns: int) -> Rig:
    """The rig in a file; cached until the file changes. Raises InputError."""
    files = _files(folder)
    if folder and any(path.parent == folder for path in files.values()):
        return _checked(name, files)  # a rig of the user, or one that may be a variant of one
    return read_or_make(f"rigs.{name}", lambda: _checked(name, files))


def _checked(name: str, files: Mapping[str, Path]) -> Rig:
    """The rig in its file, merged with the one that it is a variant of. Raises InputError."""
    own = document(files[name])
    base = own.get("variant_of") or None
    base_file = None
    if base is not None:
        others = [other for other in files if other != name]
        if base not in others:
            problem = "a variant of itself" if base == name else f"unknown rig '{base}'"
            raise misspelt(own.where("variant_of"), problem, "" if base == name else str(base), others)
        base_file = document(files[base])
        if "variant_of" in base_file:
            raise InputError(
                own.where("variant_of"), f"'{base}' is a variant itself", f"variant_of: {base_file['variant_of']}"
            )
    result = record(files[name], Rig, base_file)
    _fits(result, own, base_file or own)
    # A rig that was drafted with 10de:ID names the model's file once a later catalogue describes it.
    return replace(result, gpus={position: cards.model(key).key for position, key in result.gpus.items()})


def _fits(rig: Rig, own: YamlMapping, base_file: YamlMapping) -> None:
    """Raises InputError for an unknown model or position."""

    def at(key: str) -> str:
        if key not in own and "gpus" in own:
            key = "gpus"  # the value is inherited and does not fit these GPUs
        return (own if key in own else base_file).where(key)

    for key, value, every in (("driver", rig.driver, drivers.branches()), ("cuda", rig.cuda, drivers.toolkits())):
        if value not in every:
            raise InputError(at(key), f"{key} '{value}' is not in the catalogue", f"one of {', '.join(every)}")
    known = gpus.keys()
    for position, model in rig.gpus.items():
        where = (own if "gpus" in own else base_file)["gpus"].where(position)
        if model.startswith(gpus.VENDOR):
            if cards.model_of(model.removeprefix(gpus.VENDOR)) is None:
                todo = "scripts/devices makes the list from a newer driver's supported-gpus.json"
                found = f"NVIDIA's list of driver {devices_version()} does not have '{model}'"
                raise InputError(where, found, "a GPU of the list, or a file of catalogue/gpus/", todo)
        elif model not in known:
            raise misspelt(where, f"unknown model '{model}'", model, known)
    named = [("links", pair.split()) for pair in rig.links]
    named += [("lanes", [position]) for position in rig.lanes]
    named += [("slots", [position]) for position in rig.slots.values()]
    named += [("gpu_power_w", [position]) for position in rig.gpu_power_w]
    for key, positions in named:
        if key == "links" and (len(positions) != 2 or len(set(positions)) != 2):
            raise InputError(at(key), f"a link of '{' '.join(positions)}'", "two positions, such as 'SXM2-1 SXM2-2': 2")
        for position in positions:
            if position not in rig.gpus:
                raise misspelt(at(key), f"unknown position '{position}'", position, rig.gpus)
    _fed(rig, at("supplies"))
    pairs = [frozenset(pair.split()) for pair in rig.links]
    twice = next((sorted(pair) for pair in pairs if pairs.count(pair) > 1), None)
    if twice or min(rig.links.values(), default=1) < 1:
        problem = f"the pair {' '.join(twice)} twice" if twice else "a pair without a link"
        raise InputError(at("links"), problem, "each pair that has links once, with how many")
    if len(set(rig.slots.values())) < len(rig.slots):
        raise InputError(at("slots"), "two bus ids for one position", "each position once")
    for position, model in rig.gpus.items():
        card = cards.model(model)
        have = card.nvlink
        used = sum(links for a, b, links in rig.pairs if position in (a, b))
        if card.described and used > (have.links if have else 0):
            raise InputError(
                at("links"), f"{used} NVLinks at {position}", f"{have.links if have else 0}, as {model} has"
            )


BASE = "base"
"""The name for the rest of the machine in `feeds` of a supply."""


def _fed(rig: Rig, where: str) -> None:
    """Raises InputError if supplies feed an unknown position, feed one twice, or leave one without power."""
    fed = [name for supply in rig.supplies for name in supply.feeds]
    known = [*rig.gpus, BASE]
    for name in fed:
        if name not in known:
            raise misspelt(where, f"a supply feeds '{name}'", name, known)
        if fed.count(name) > 1:
            raise InputError(where, f"two supplies feed {name}", "each position, and base, at one supply")
    left = [name for name in known if name not in fed]
    if fed and left and all(supply.feeds for supply in rig.supplies):
        raise InputError(where, f"no supply feeds {', '.join(left)}", "each position, and base, at one supply")
