"""The types of the JSON documents in a host's report, which `engine.limit_rows`, `engine.machine` and facts make for the history. Only
answers of workers are checked with them. A dataclass stands for an object with its fields."""

from __future__ import annotations

from types import GenericAlias
from typing import Any, TypedDict, get_type_hints

from rigwright.catalogue.rigs import Scaling
from rigwright.engine.machine import NAMES
from rigwright.facts import gpu_health, machine, nccl
from rigwright.facts.gpu_figures import GpuFigures
from rigwright.facts.gpu_health import Card
from rigwright.facts.topology import Place
from rigwright.features.stress import facts as stress
from rigwright.features.training_smoke import facts as training_smoke
from rigwright.features.training_smoke.facts import SmokeFigures


class Limit(TypedDict):
    """A limit of a GPU."""

    expected: str
    in_force: str
    supported: str
    set_by: str
    drift: bool


class LimitRow(TypedDict):
    """The limits of a GPU."""

    index: int
    position: str
    bus_id: str
    uuid: str
    name: str
    lost: str
    persistence: Limit
    power: Limit
    application_clocks: Limit
    locked_graphics: Limit
    locked_memory: Limit


class Rig(TypedDict):
    """What the description of a machine says of its rig."""

    key: str
    title: str
    bandwidth_gb_s: dict[str, float]
    all_reduce_gb_s: float | None
    scaling: Scaling | None
    path: str
    why: str


def _of(name: str, types: dict[str, Any]) -> Any:
    make: Any = TypedDict  # mypy accepts only literal keys
    return make(name, types)


def _list_of(item: Any) -> Any:
    return GenericAlias(list, (item,))


_CARD = get_type_hints(Card)
_GPU = _of("GPU", {**_CARD, "position": str, "expected": str, "answers": bool})
_PAIR = _of("PAIR", {"from": str, "to": str, "up": int, "down": int, "expected": int | None, "gb_s": float | None})
MACHINE = _of(
    "MACHINE",
    {
        **dict.fromkeys(NAMES, str),
        "rig": Rig | None,
        "gpus": _list_of(_GPU),
        "bus": list[Place],
        "nvlinks": _list_of(_PAIR),
        "unknown": dict[str, str],
    },
)
"""The description of a machine."""

KEPT: dict[str, Any] = {
    gpu_health.cards.name: _list_of(_of("CARD", {key: _CARD[key] for key in gpu_health.LASTING})),
    stress.measured.name: list[GpuFigures],
    nccl.tested.name: list[nccl.PairFigures],
    training_smoke.trained.name: list[SmokeFigures],
    machine.machine.name: _of("KEPT", {"memory_gib": int, "sockets": int, "threads": int, "modules": list[str] | None}),
}
"""What the history records of a fact, by the name of the fact, where it is not the whole value."""
