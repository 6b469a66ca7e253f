"""The place of every GPU by UUID: moved, new, missing, replaced, or in two machines at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rigwright.checks import Finding
from rigwright.core.gpu_labels import SHORT_UUID
from rigwright.fleet.drift._machine import Findings, Machine, finding


@dataclass(frozen=True)
class Place:
    """A host and a bus id."""

    host: str
    bus_id: str

    def __str__(self) -> str:
        return f"{self.host} {self.bus_id}"


def placed(machines: Sequence[Machine], known: Mapping[str, Place]) -> Findings:
    """GPUs that moved, are new, are missing or were replaced since an earlier run, and those that two host names have at once.

    `known`: by UUID, the last recorded place of a GPU, also on machines that did not answer.
    """
    now: dict[str, list[Place]] = defaultdict(list)
    for machine in machines:
        for uuid, bus_id in _uuids(machine.facts).items():
            now[uuid].append(Place(machine.name, bus_id))
    return {machine.name: list(_placed(machine, now, known)) for machine in machines if "gpu.gpus" in machine.facts}


def _uuids(facts: Mapping[str, Any]) -> dict[str, str]:
    return {gpu["uuid"]: gpu["bus_id"] for gpu in facts.get("gpu.gpus") or () if gpu["uuid"]}


def _placed(machine: Machine, now: Mapping[str, list[Place]], known: Mapping[str, Place]) -> Iterator[Finding]:
    here, was = _uuids(machine.facts), _uuids(machine.before)
    called = _names(machine)
    left = {bus_id: uuid for uuid, bus_id in was.items() if uuid not in here}
    replaced = {left[at]: uuid for uuid, at in here.items() if uuid not in was and at in left}
    for uuid, at in here.items():
        there = [place.host for place in now[uuid] if place.host != machine.name]
        before = known.get(uuid)
        subject = f"{at} {called(uuid)}"
        if there:
            cause = "two names of one machine in the inventory"
            yield finding("gpus", subject, f"{there[0]} has it too", "one machine", cause)
        elif uuid in was and was[uuid] != at:
            cause = "another slot, or the bus was renumbered"
            yield finding("gpus", subject, f"was at {was[uuid]}", was[uuid], cause)
        elif uuid not in was and before and before.host != machine.name:
            yield finding("gpus", subject, f"moved here from {before}", str(before))
        elif uuid in replaced.values():
            yield finding("gpus", subject, "replaces another", called(left[at]))
        elif uuid not in was and was:
            yield finding("gpus", subject, "new", "no GPU there")
    for at, uuid in left.items():
        place = next(iter(now.get(uuid, ())), None)
        by = replaced.get(uuid)
        seen = f"moved to {place}" if place else f"replaced by {called(by)}" if by else "missing"
        cause = "" if place or by else "it fell off the bus, or was removed"
        yield finding("gpus", f"{at} {called(uuid)}", seen, "here", cause)


def _names(machine: Machine) -> Callable[[str], str]:
    """A function from a UUID to the name of the GPU: its short UUID, and its serial number where known."""
    cards = [card for facts in (machine.before, machine.facts) for card in facts.get("gpu_health.cards") or ()]
    serials = {card["uuid"]: card["serial"] for card in cards if card.get("serial")}
    return lambda uuid: uuid[:SHORT_UUID] + (f" (serial {serials[uuid]})" if uuid in serials else "")
