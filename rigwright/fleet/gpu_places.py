"""Follows every GPU by its UUID from run to run: which one moved, is new, is missing, or has another in its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from rigwright.checks import Finding
from rigwright.core.gpu_labels import SHORT_UUID
from rigwright.fleet.drift import Findings, Machine, finding


class Place(Struct, frozen=True):
    """A host and a bus id."""

    host: str
    bus_id: str

    def __str__(self) -> str:
        return f"{self.host} {self.bus_id}"


def changes(machines: Sequence[Machine], known: Mapping[str, Place]) -> Findings:
    """GPUs that moved, are new, missing or replaced since an earlier run, and GPUs that two host names have at once.

    `known`: by UUID, the last recorded place of a GPU, also on machines that did not answer.
    """
    now: dict[str, list[Place]] = defaultdict(list)
    for machine in machines:
        for uuid, bus_id in _uuids(machine.facts).items():
            now[uuid].append(Place(machine.name, bus_id))
    return {machine.name: list(_changes(machine, now, known)) for machine in machines if "gpu.gpus" in machine.facts}


def _uuids(facts: Mapping[str, Any]) -> dict[str, str]:
    return {gpu["uuid"]: gpu["bus_id"] for gpu in facts.get("gpu.gpus") or () if gpu["uuid"]}


def _changes(machine: Machine, now: Mapping[str, list[Place]], known: Mapping[str, Place]) -> Iterator[Finding]:
    here, before = _uuids(machine.facts), _uuids(machine.before)
    name = _names(machine)
    missing = {bus_id: uuid for uuid, bus_id in before.items() if uuid not in here}
    replaced = {missing[bus_id]: uuid for uuid, bus_id in here.items() if uuid not in before and bus_id in missing}
    for uuid, bus_id in here.items():
        others = [place.host for place in now[uuid] if place.host != machine.name]
        last = known.get(uuid)
        subject = f"{bus_id} {name(uuid)}"
        if others:
            cause = "two names of one machine in the inventory"
            yield finding("gpus", subject, f"{others[0]} has it too", "one machine", cause)
        elif uuid in before and before[uuid] != bus_id:
            cause = "another slot, or the bus was renumbered"
            yield finding("gpus", subject, f"was at {before[uuid]}", before[uuid], cause)
        elif uuid not in before and last and last.host != machine.name:
            yield finding("gpus", subject, f"moved here from {last}", str(last))
        elif uuid in replaced.values():
            yield finding("gpus", subject, "replaces another", name(missing[bus_id]))
        elif uuid not in before and before:
            yield finding("gpus", subject, "new", "no GPU there")
    for bus_id, uuid in missing.items():
        place = next(iter(now.get(uuid, ())), None)
        successor = replaced.get(uuid)
        fate = f"moved to {place}" if place else f"replaced by {name(successor)}" if successor else "missing"
        cause = "" if place or successor else "it fell off the bus, or was removed"
        yield finding("gpus", f"{bus_id} {name(uuid)}", fate, "here", cause)


def _names(machine: Machine) -> Callable[[str], str]:
    """A function from a UUID to the name of the GPU: its short UUID, and its serial number where known."""
    cards = [card for facts in (machine.before, machine.facts) for card in facts.get("gpu_health.cards") or ()]
    serials = {card["uuid"]: card["serial"] for card in cards if card.get("serial")}
    return lambda uuid: uuid[:SHORT_UUID] + (f" (serial {serials[uuid]})" if uuid in serials else "")
