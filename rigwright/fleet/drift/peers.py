"""Differences of machines and GPUs from most of their peers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from rigwright.catalogue.summary import counted_ids
from rigwright.checks import Finding
from rigwright.core.gpu_labels import SHORT_UUID
from rigwright.fleet.drift._machine import Findings, Machine, finding

ENOUGH = 3
"""The fewest machines of a group, and the fewest values, that are compared."""


def peers(machines: Sequence[Machine]) -> Findings:
    """Machines that differ from most of their group, and from the same hardware where that matters."""
    findings: Findings = {machine.name: [] for machine in machines}
    for group, judged in _grouped(machines).items():
        members = [machine for machine in machines if group in machine.groups]
        for name, difference in (*_odd_machines(group, members), *_odd_gpus(group, members)):
            if name in judged:
                findings[name].append(difference)
    return findings


def _odd_machines(group: str, members: Sequence[Machine]) -> Iterator[tuple[str, Finding]]:
    """Each machine that differs from most of the comparable machines of the group."""
    for trait, like, value in _TRAITS:
        sorts: dict[Hashable, dict[str, str]] = defaultdict(dict)
        for one in members:
            if (sort := like(one)) and (said := value(one)) is not None:
                sorts[sort][one.name] = said
        for said_of in sorts.values():
            for name, common, share in _odd(said_of):
                yield (
                    name,
                    finding("peers", trait, said_of[name], common, f"{share} in {group} have the expected value"),
                )


def _grouped(machines: Sequence[Machine]) -> dict[str, set[str]]:
    """By group the machines that are compared in it: each in its nearest group with enough machines."""
    size = Counter(group for machine in machines for group in machine.groups)
    found: dict[str, set[str]] = defaultdict(set)
    for machine in machines:
        nearest = next((group for group in reversed(machine.groups) if size[group] >= ENOUGH), None)
        if nearest:
            found[nearest].add(machine.name)
    return found


def _odd(values: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """The names whose value differs from that of the majority, with that value and its share; none without a majority."""
    if len(values) < ENOUGH:
        return []
    common, count = Counter(values.values()).most_common(1)[0]
    if 2 * count <= len(values):
        return []
    return [(name, common, f"{count} of {len(values)}") for name, value in values.items() if value != common]


def _text(name: str, *keys: str) -> Callable[[Machine], str | None]:
    """A function to the text of a fact; None where the fact is empty or was not read."""

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
        tuple((machine.facts.get("system.board") or {}).values())
        if _text("system.board", "vendor", "product", "board")(machine)
        else ()
    )


_TRAITS: tuple[tuple[str, Callable[[Machine], Hashable], Callable[[Machine], str | None]], ...] = (
    ("driver", _models, _driver),
    ("kernel", _text("system.os_release", "id", "version_id"), _text("system.running_kernel")),
    ("system", lambda _: "any", _text("system.os_release", "pretty_name")),
    ("GPUs", lambda machine: (_models(machine), _board(machine)), _gpus),
    ("BIOS", _board, _text("system.firmware", "vendor", "version", "date")),
    ("processors", _board, _text("system.cpu")),
    ("memory GiB", _board, _text("machine.machine", "memory_gib")),
)
"""Each trait with two functions of a machine: the key of the machines that are compared (none when empty), and the value."""


def _odd_gpus(group: str, members: Sequence[Machine]) -> Iterator[tuple[str, Finding]]:
    """Each GPU whose limits (where no playbook sets them) or VBIOS differ from most GPUs of its model in the group; a VBIOS is
    compared within the same maker."""
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
                    finding(
                        "peers",
                        subject,
                        said_of[uuid],
                        common,
                        f"{share} GPUs of this model in {group} have the expected value",
                    ),
                )


_GPU_TRAITS = (
    ("vbios", "gpu_health.cards", ("name", "subsystem_id")),
    ("ecc", "gpu_health.cards", ("name",)),
    ("memory_mib", "gpu_health.cards", ("name", "ecc")),
    ("power_limit_w", "gpu.gpus", ("name",)),
    ("application_clocks", "gpu.gpus", ("name",)),
    ("persistence", "gpu.gpus", ("name",)),
)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(_words(one) for one in value.values())
    return f"{value:g}" if isinstance(value, float) else {True: "on", False: "off"}.get(value, str(value))
