"""The rigs: machines that people have, one file each in rigs/, and what is expected of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from rigwright.catalogue import drivers, gpus, reading
from rigwright.catalogue.reading import document, record
from rigwright.errors import InputError
from rigwright.typed import Branch, BusId, Release
from rigwright.wanted import Limits
from rigwright.yamlfile import Mapping as YamlMapping
from rigwright.yamlfile import did_you_mean

Kind = Literal["nv1", "nv2", "nv3", "nv4", "nv12", "nv18", "nvswitch", "pcie", "host", "x1"]
"""How two GPUs reach each other: so many NVLinks; NVSwitch; peers over PCIe; through host memory; a PCIe x1 slot."""


@dataclass(frozen=True)
class Lanes:
    """A slot that is narrower than its card: PCIe width, and generation."""

    width: Literal[1, 2, 4, 8, 16]
    generation: int


@dataclass(frozen=True)
class Supply:
    """A kind of power supply: watts each, how many, volts at the output.

    `shared`: they feed one rail together. `connector`: what the GPUs' power goes through, with its amperes and how many
    of them all its supplies have. `feeds`: the positions that hang on it, and `base` for the rest of the machine; a
    supply without it feeds what no other does.
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


@dataclass(frozen=True)
class Peers:
    """How GPUs are expected to reach each other: `path`, and why."""

    path: Literal["nvlink", "nvswitch", "pcie", "none", "measure"]
    why: str = ""


@dataclass(frozen=True)
class Scaling:
    """Data-parallel training: with `gpus` GPUs so many times one GPU's speed."""

    gpus: int
    speed_up: float

    def __post_init__(self) -> None:
        if not 0 < self.speed_up <= self.gpus:
            raise ValueError(
                f"{self.speed_up:g} times with {self.gpus} GPUs", "at most as many times as there are GPUs"
            )


@dataclass(frozen=True)
class Rig:
    """A known machine.

    `gpus`: the model of each position, in order. `slots`: positions by bus id, where they are known. `links`: NVLinks
    of a pair ('SXM2-1 SXM2-2'). `lanes`: slots narrower than the card. `boards`: what the machine calls itself (DMI).
    `bandwidth_gb_s`: what a large copy reaches in one direction, by kind of path; `all_reduce_gb_s`: NCCL's bus bandwidth.
    """

    title: str
    gpus: dict[str, str]
    driver: Branch
    cuda: Release
    p2p: Peers
    sources: dict[str, str] = field(repr=False)
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
    limits: Limits | None = None
    bandwidth_gb_s: dict[Kind, float] = field(default_factory=dict)
    all_reduce_gb_s: float | None = None
    scaling: Scaling | None = None
    notes: tuple[str, ...] = ()
    key: str = ""

    def __post_init__(self) -> None:
        odd = next((position for position in self.gpus if not position or " " in position), None)
        if not self.gpus or odd is not None:
            raise ValueError(f"gpus {dict(self.gpus)}", "POSITION: MODEL for every GPU, positions without spaces")
        if (self.nvswitches > 0) != (self.p2p.path == "nvswitch"):
            raise ValueError(f"{self.nvswitches} nvswitches and the path {self.p2p.path}", "both, or neither")

    @property
    def models(self) -> tuple[str, ...]:
        """The model of every GPU, by position."""
        return tuple(self.gpus.values())

    @property
    def pairs(self) -> Iterator[tuple[str, str, int]]:
        """Two positions and their NVLinks."""
        return ((*pair.split(), links) for pair, links in self.links.items())  # type: ignore[misc]


def rigs() -> tuple[str, ...]:
    """The names of all rigs."""
    return tuple(sorted(path.stem for path in (reading.FOLDER / "rigs").glob("*.yml")))


@lru_cache(maxsize=64)
def rig(name: str, where: str, folder: Path | None = None) -> Rig:
    """The rig of that name, of `folder` (the user's own) or of the catalogue; `where` named it.

    Raises InputError with the nearest one, and for a mistake in its file.
    """
    own = sorted(path.stem for path in folder.glob("*.yml")) if folder else []
    known = [*own, *rigs()]
    if name not in known:
        raise InputError(
            where, f"unknown rig '{name}'{did_you_mean(name, known)}", f"one of {', '.join(sorted(known))}"
        )
    path = (folder if folder and name in own else reading.FOLDER / "rigs") / f"{name}.yml"
    given = document(path)
    base = given.get("variant_of") or None
    below = None
    if base is not None:
        others = [one for one in known if one != name]
        if base not in others:
            what = "a variant of itself" if base == name else f"unknown rig '{base}'{did_you_mean(str(base), others)}"
            raise InputError(given.where("variant_of"), what, f"one of {', '.join(others)}")
        below = document((folder if folder and base in own else reading.FOLDER / "rigs") / f"{base}.yml")
        if "variant_of" in below:
            raise InputError(
                given.where("variant_of"), f"'{base}' is a variant itself", f"variant_of: {below['variant_of']}"
            )
    found = record(path, Rig, below)
    _fits(found, given, below or given)
    return found


def _fits(found: Rig, given: YamlMapping, below: YamlMapping) -> None:
    """Raises InputError for a model that is none, and for a position that is none."""

    def at(key: str) -> str:
        if key not in given and "gpus" in given:
            key = "gpus"  # inherited, and no longer right for these GPUs
        return (given if key in given else below).where(key)

    for key, value, every in (("driver", found.driver, drivers.branches()), ("cuda", found.cuda, drivers.toolkits())):
        if value not in every:
            raise InputError(at(key), f"{key} '{value}' is not in the catalogue", f"one of {', '.join(every)}")
    known = gpus.keys()
    for position, model in found.gpus.items():
        if model not in known:
            where = (given if "gpus" in given else below)["gpus"].where(position)
            raise InputError(
                where, f"unknown model '{model}'{did_you_mean(model, known)}", f"one of {', '.join(known)}"
            )
    named = [("links", pair.split()) for pair in found.links]
    named += [("lanes", [position]) for position in found.lanes]
    named += [("slots", [position]) for position in found.slots.values()]
    for key, positions in named:
        if key == "links" and (len(positions) != 2 or len(set(positions)) != 2):
            raise InputError(at(key), f"a link of '{' '.join(positions)}'", "two positions, such as 'SXM2-1 SXM2-2': 2")
        for position in positions:
            if position not in found.gpus:
                raise InputError(
                    at(key),
                    f"unknown position '{position}'{did_you_mean(position, found.gpus)}",
                    f"one of {', '.join(found.gpus)}",
                )
    _fed(found, at("supplies"))
    pairs = [frozenset(pair.split()) for pair in found.links]
    twice = next((sorted(pair) for pair in pairs if pairs.count(pair) > 1), None)
    if twice or min(found.links.values(), default=1) < 1:
        what = f"the pair {' '.join(twice)} twice" if twice else "a pair without a link"
        raise InputError(at("links"), what, "each pair that has links once, with how many")
    if len(set(found.slots.values())) < len(found.slots):
        raise InputError(at("slots"), "two bus ids for one position", "each position once")
    for position, model in found.gpus.items():
        have = gpus.model(model).nvlink
        used = sum(links for a, b, links in found.pairs if position in (a, b))
        if used > (have.links if have else 0):
            raise InputError(
                at("links"), f"{used} NVLinks at {position}", f"{have.links if have else 0}, as {model} has"
            )


BASE = "base"
"""What `feeds` of a supply calls all that is not a GPU."""


def _fed(found: Rig, where: str) -> None:
    """Raises InputError for supplies that feed an unknown position, one twice, or leave one without power."""
    fed = [name for supply in found.supplies for name in supply.feeds]
    known = [*found.gpus, BASE]
    for name in fed:
        if name not in known:
            raise InputError(where, f"a supply feeds '{name}'{did_you_mean(name, known)}", f"one of {', '.join(known)}")
        if fed.count(name) > 1:
            raise InputError(where, f"two supplies feed {name}", "each position, and base, at one supply")
    left = [name for name in known if name not in fed]
    if fed and left and all(supply.feeds for supply in found.supplies):
        raise InputError(where, f"no supply feeds {', '.join(left)}", "each position, and base, at one supply")
