"""What a report says about a machine: its cards, the links between them, what its rig specifies, and the figures that
stress measured of its GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.core.host_result import HostResult
from rigwright.core.schema import BusId
from rigwright.engine.host_run import HostRun
from rigwright.facts import Fact, driver, system
from rigwright.facts.gpu import health as gpu_health, topology
from rigwright.facts.gpu.health import Card
from rigwright.facts.gpu.topology import NvLink, Place
from rigwright.facts.plain import plain

NAMES: dict[str, Fact[Any]] = {
    "board": system.board,
    "cpu": system.cpu,
    "system": system.os_release,
    "kernel": system.running_kernel,
    "driver": driver.loaded_version,
}
FACTS: tuple[Fact[Any], ...] = (*NAMES.values(), gpu_health.cards, topology.places, topology.nvlinks)


class MachineResult(HostResult, frozen=True):
    """The description of the machine, the key `machine` in docs/reference/json.md; {} if it was not read."""

    KEY = FIELD = "machine"
    machine: dict[str, Any] = field(default_factory=dict)


class MeasuredGpu(Struct, frozen=True):
    """A GPU with the figures of its newest stress on this machine. None, "" or no entry: not measured, or not known.

    `model`: its name. `at` (ISO 8601, UTC), `run`: when, and by which run. `power_limit_w`, `driver`: of that time.
    `tflops` by kind of product and `memory_gb_s`: measured while it worked alone. `shares`: of the figure that the
    catalogue has of the model, by kind of product. `clock_shares`: the same at the clock that it had. `memory_share`:
    of the bandwidth of the model. `slowed_by`: why NVML says that its clock was lower.
    """

    bus_id: str
    uuid: str
    position: str
    model: str
    at: str
    run: str
    power_limit_w: float | None
    driver: str
    tflops: dict[str, float]
    shares: dict[str, float] = field(default_factory=dict)
    clock_shares: dict[str, float] = field(default_factory=dict)
    memory_gb_s: float | None = None
    memory_share: float | None = None
    to_device_gb_s: float | None = None
    from_device_gb_s: float | None = None
    power_max_w: float | None = None
    core_max_c: float | None = None
    memory_max_c: float | None = None
    slowed_by: str = ""


class MeasuredGpus(HostResult, frozen=True):
    """The figures of the newest stress of each GPU that had one on this machine."""

    KEY, FIELD = "measured", "gpus"
    gpus: tuple[MeasuredGpu, ...] = ()


def describe(run: HostRun) -> MachineResult:
    """The description of the host. Reads the facts that are not known in one round trip."""
    run.read_unknown(FACTS)
    known = {fact: run.store.known[fact] for fact in FACTS}
    parameter_sets = [*(step.parameters for step in run.bound.steps), *(check.parameters for check in run.bound.checks)]
    rig = next((parameters["rig"] for parameters in parameter_sets if parameters.get("rig")), None)
    slots = next(
        (parameters["slots"] for parameters in parameter_sets if parameters.get("slots")), rig.slots if rig else {}
    )
    return MachineResult(of(known, rig, slots))


def of(known: Mapping[Fact[Any], Any], rig: Rig | None, slots: Mapping[BusId, str]) -> dict[str, Any]:
    """The description of a machine with these facts; its rig, if it has one, says what is expected."""
    cards, places, links = (
        value if isinstance(value := known[fact], tuple) else ()
        for fact in (gpu_health.cards, topology.places, topology.nvlinks)
    )
    links_known = isinstance(known[topology.nvlinks], tuple)
    return {
        **{name: _text(known[fact]) for name, fact in NAMES.items()},
        "rig": _rig(rig) if rig else None,
        "gpus": _gpus(cards, places, slots, rig),
        "bus": [plain(place) for place in places],
        "nvlinks": _pairs(cards, links, rig, {name: bus_id for bus_id, name in slots.items()}) if links_known else [],
        "unknown": {fact.name: str(value) for fact, value in known.items() if isinstance(value, Exception)},
    }


def _text(value: Any) -> str:
    if value is None or isinstance(value, Exception):
        return ""
    return str(value.pretty_name) if isinstance(value, system.OsRelease) else str(value)


def _rig(rig: Rig) -> dict[str, Any]:
    keys = ("key", "title", "bandwidth_gb_s", "all_reduce_gb_s", "scaling")
    return {**{key: plain(getattr(rig, key)) for key in keys}, "path": rig.p2p.path, "why": rig.p2p.why}


def _gpus(
    cards: tuple[Card, ...], places: tuple[Place, ...], slots: Mapping[BusId, str], rig: Rig | None
) -> list[dict[str, Any]]:
    """One row for each GPU that the driver or the PCI bus shows, in bus order, with its position and the model expected
    there."""
    of_driver = {card.bus_id for card in cards}
    rest = [Card(place.bus_id, "", "") for place in places if place.is_gpu and place.bus_id not in of_driver]
    rows = []
    for card in sorted((*cards, *rest), key=lambda card: card.bus_id):
        position = slots.get(BusId(card.bus_id), "")
        model = rig.gpus.get(position) if rig else None
        expected = catalogue.model(model).label if model else ""
        answers = bool(card.uuid) and not card.lost
        rows.append({**plain(card), "position": position, "expected": expected, "answers": answers})
    return rows


def _pairs(
    cards: tuple[Card, ...], links: tuple[NvLink, ...], rig: Rig | None, bus_of: Mapping[str, BusId]
) -> list[dict[str, Any]]:
    """NVLinks by pair, with the number that the rig has there; `to` is "" for links that are down and do not name their
    peer."""
    bus_ids = {card.uuid: card.bus_id for card in cards if card.uuid}
    gpus, reporting = {card.bus_id for card in cards}, {bus_ids.get(link.uuid, "") for link in links}
    up: Counter[tuple[str, str]] = Counter()
    down: Counter[tuple[str, str]] = Counter()
    speed: dict[tuple[str, str], float] = {}
    for link in links:
        ends = (bus_ids.get(link.uuid, link.uuid), link.peer)
        pair = (ends[1], ends[0]) if link.peer in gpus and ends[1] < ends[0] else ends
        if pair != ends and link.peer in reporting:
            continue  # the other end reports the same link
        (down if link.gb_s is None else up)[pair] += 1
        speed[pair] = link.gb_s or speed.get(pair, 0.0)
    expected: dict[tuple[str, str], int] = {}
    for a, b, count in rig.pairs if rig else ():
        if a in bus_of and b in bus_of:
            first, second = sorted((str(bus_of[a]), str(bus_of[b])))
            expected[first, second] = count
    return [
        {"from": a, "to": b, "up": up[a, b], "down": down[a, b], "expected": expected.get((a, b)),
         "gb_s": speed.get((a, b)) or None}
        for a, b in sorted({*up, *down, *expected})
    ]  # fmt: skip
