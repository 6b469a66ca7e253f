"""Machines against their peers: who is not as most of those that should be like it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from rigwright.checks import Finding
from rigwright.choices import counted_ids
from rigwright.drift.machine import Findings, Machine, finding
from rigwright.positions import SHORT_UUID

ENOUGH = 3
"""So many machines of a group have to answer, and so many values have to be compared, before one can be the odd one out."""


def peers(machines: Sequence[Machine]) -> Findings:
    """Who is not as most of the machines that should be like it: of its group, and of the same hardware where that matters."""
    found: Findings = {machine.name: [] for machine in machines}
    for group, judged in _grouped(machines).items():
        members = [one for one in machines if group in one.groups]
        for name, one in (*_odd_machines(group, members), *_odd_gpus(group, members)):
            if name in judged:
                found[name].append(one)
    return found


def _odd_machines(group: str, members: Sequence[Machine]) -> Iterator[tuple[str, Finding]]:
    """Each machine that is not as most of the group's machines that should be like it."""
    for trait, like, value in _TRAITS:
        sorts: dict[Hashable, dict[str, str]] = defaultdict(dict)
        for one in members:
            if (sort := like(one)) and (said := value(one)) is not None:
                sorts[sort][one.name] = said
        for said_of in sorts.values():
            for name, common, share in _odd(said_of):
                yield name, finding("peers", trait, said_of[name], common, f"{share} of {group} have that")


def _grouped(machines: Sequence[Machine]) -> dict[str, set[str]]:
    """By group the machines that are judged in it: each in its nearest that has enough machines which answered."""
    size = Counter(group for machine in machines for group in machine.groups)
    found: dict[str, set[str]] = defaultdict(set)
    for machine in machines:
        nearest = next((group for group in reversed(machine.groups) if size[group] >= ENOUGH), None)
        if nearest:
            found[nearest].add(machine.name)
    return found


def _odd(values: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Who differs from what more than half say, with that and the share that says it; nobody where no value is so common."""
    if len(values) < ENOUGH:
        return []
    common, count = Counter(values.values()).most_common(1)[0]
    if 2 * count <= len(values):
        return []
    return [(name, common, f"{count} of {len(values)}") for name, value in values.items() if value != common]


def _text(name: str, *keys: str) -> Callable[[Machine], str | None]:
    """What a fact says in words; None where it says nothing or was not read."""

    def value(machine: Machine) -> str | None:
        said = machine.facts.get(name)
        words = [str(said[key]) for key in keys if said[key]] if isinstance(said, Mapping) else [str(said)]
        return " ".join(words) or None if said not in (None, "") else None

    return value


def _driver(machine: Machine) -> str | None:
    said = machine.facts.get("driver.loaded_version")
    return None if said is None else said or "none loaded"


def _models(machine: Machine) -> Hashable:
    """The GPU models by PCI id; nothing for a machine without GPUs."""
    return tuple(sorted({one["device_id"] for one in machine.facts.get("pci.gpus") or ()}))


def _gpus(machine: Machine) -> str | None:
    return counted_ids(one["device_id"] for one in machine.facts.get("pci.gpus") or ()) or None


def _board(machine: Machine) -> Hashable:
    """The board, where the firmware names one."""
    return (
        tuple((machine.facts.get("os.board") or {}).values())
        if _text("os.board", "vendor", "product", "board")(machine)
        else ()
    )


_TRAITS: tuple[tuple[str, Callable[[Machine], Hashable], Callable[[Machine], str | None]], ...] = (
    ("driver", _models, _driver),
    ("kernel", _text("os.release", "id", "version_id"), _text("os.running_kernel")),
    ("system", lambda _: "any", _text("os.release", "pretty_name")),
    ("GPUs", lambda machine: (_models(machine), _board(machine)), _gpus),
    ("BIOS", _board, _text("os.firmware", "vendor", "version", "date")),
    ("processors", _board, _text("os.cpu")),
    ("memory GiB", _board, _text("machine.machine", "memory_gib")),
)
"""What is compared, among which machines of a group (those with the same answer; none where it is empty), and what each says."""


def _odd_gpus(group: str, members: Sequence[Machine]) -> Iterator[tuple[str, Finding]]:
    """Each GPU whose limits, where no playbook holds them, or VBIOS are not those of most GPUs of its model (a VBIOS: of its
    maker, too) in the group."""
    for trait, fact, alike in _GPU_TRAITS:
        sorts: dict[Hashable, dict[str, str]] = defaultdict(dict)
        where: dict[str, str] = {}
        for machine in members:
            for one in machine.facts.get(fact) or ():
                if one["uuid"] and one.get(trait) is not None and trait not in machine.held:
                    sorts[tuple(one[key] for key in alike)][one["uuid"]] = _words(one[trait])
                    where[one["uuid"]] = f"{one['bus_id']} {one['uuid'][:SHORT_UUID]}"
        owners = {one["uuid"]: machine.name for machine in members for one in machine.facts.get(fact) or ()}
        for said_of in sorts.values():
            for uuid, common, share in _odd(said_of):
                subject = f"{where[uuid]} {trait.replace('_', ' ')}"
                yield (
                    owners[uuid],
                    finding("peers", subject, said_of[uuid], common, f"{share} such GPUs of {group} have that"),
                )


_GPU_TRAITS = (
    ("vbios", "card.cards", ("name", "subsystem_id")),
    ("ecc", "card.cards", ("name",)),
    ("memory_mib", "card.cards", ("name", "ecc")),
    ("power_limit_w", "gpu.gpus", ("name",)),
    ("application_clocks", "gpu.gpus", ("name",)),
    ("persistence", "gpu.gpus", ("name",)),
)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(_words(one) for one in value.values())
    return f"{value:g}" if isinstance(value, float) else {True: "on", False: "off"}.get(value, str(value))
