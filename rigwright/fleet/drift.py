"""Differences in a fleet: of each machine from its past and from its peers. gpu_places.py follows every GPU."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field

from rigwright.catalogue.summary import counted_ids
from rigwright.checks import Finding
from rigwright.core import lazy_re
from rigwright.core.gpu_labels import SHORT_UUID
from rigwright.history.differences import compare

Findings = dict[str, list[Finding]]
"""By the name of the machine."""

Gpus = Sequence[Mapping[str, Any]]


class Machine(Struct, frozen=True):
    """A machine that answered: its facts by name as JSON types, and those of an earlier run, or {}.

    `groups`: of the inventory, the nearest last. `held`: the GPU values that its playbook sets. The plan compares them,
    so they are not compared with the past and the peers.
    """

    name: str
    groups: tuple[str, ...]
    facts: Mapping[str, Any]
    before: Mapping[str, Any] = field(default_factory=dict)
    held: frozenset[str] = frozenset()


def finding(kind: str, subject: str, value: str, expected: str, cause: str = "") -> Finding:
    """A failed finding of the check `fleet.KIND`."""
    source: Literal["past", "peers"] = "peers" if kind == "peers" else "past"
    return Finding(subject, "fail", value or "nothing", expected or "nothing", cause, "", source, check=f"fleet.{kind}")


_TITLES = {
    "system.os_release": "system",
    "system.architecture": "architecture",
    "system.running_kernel": "kernel",
    "system.board": "board",
    "system.cpu": "processors",
    "system.firmware": "BIOS",
    "driver.loaded_version": "driver",
    "driver.library_version": "driver's library",
    "driver.secure_boot": "Secure Boot",
    "machine.machine": "machine",
    "gpu.gpus": "",
    "gpu_health.cards": "",
}
_SEPARATORS = lazy_re.compile(r"[_.\[\]]+")
_MOMENTARY = ("index", "lost", "bus_id")


def past(machine: Machine) -> list[Finding]:
    """The facts of a machine that changed. gpu_places.py has the GPUs that were added or removed."""
    findings = []
    for name, title in _TITLES.items():
        if name in machine.facts and name in machine.before:
            sides = machine.before[name], machine.facts[name]
            if name in ("gpu.gpus", "gpu_health.cards"):
                before, now = sides
                sides = _both(before, now, machine.held), _both(now, before, machine.held)
            for path, before, after in compare(*sides):
                subject = f"{title} {_SEPARATORS.sub(' ', path)}".strip()
                findings.append(finding("past", subject, after, before))
    return list(dict.fromkeys(findings))


def _both(gpus: Gpus, others: Gpus, held: Collection[str]) -> dict[str, dict[str, Any]]:
    """The GPUs in both, by short UUID, without momentary values and those that the playbook sets."""
    other_uuids = {gpu["uuid"] for gpu in others}
    return {
        gpu["uuid"][:SHORT_UUID]: {key: gpu[key] for key in gpu if key not in (*_MOMENTARY, "uuid", *held)}
        for gpu in gpus
        if gpu["uuid"] and gpu["uuid"] in other_uuids
    }


ENOUGH = 3
"""The fewest machines of a group, and the fewest values, that are compared."""


def peers(machines: Sequence[Machine]) -> Findings:
    """Machines that differ from most of their group, and from the same hardware where that matters."""
    findings: Findings = {machine.name: [] for machine in machines}
    for group, judged in _judged_in_groups(machines).items():
        members = [machine for machine in machines if group in machine.groups]
        for name, difference in (*_odd_machines(group, members), *_odd_gpus(group, members)):
            if name in judged:
                findings[name].append(difference)
    return findings


def _odd_machines(group: str, members: Sequence[Machine]) -> Iterator[tuple[str, Finding]]:
    """Each machine that differs from most comparable machines of the group."""
    for trait, kind_of, value_of in _TRAITS:
        kinds: dict[Hashable, dict[Any, str]] = defaultdict(dict)
        for machine in members:
            if (kind := kind_of(machine)) and (value := value_of(machine)) is not None:
                kinds[kind][machine.name] = value
        for name, value, common, share in _odd(kinds):
            yield name, finding("peers", trait, value, common, f"{share} in {group} have the expected value")


def _judged_in_groups(machines: Sequence[Machine]) -> dict[str, set[str]]:
    """By group the machines that are compared in it: each in its nearest group with enough machines."""
    size = Counter(group for machine in machines for group in machine.groups)
    groups: dict[str, set[str]] = defaultdict(set)
    for machine in machines:
        nearest = next((group for group in reversed(machine.groups) if size[group] >= ENOUGH), None)
        if nearest:
            groups[nearest].add(machine.name)
    return groups


def _odd(kinds: Mapping[Hashable, Mapping[Any, str]]) -> Iterator[tuple[Any, str, str, str]]:
    """For each kind the keys whose value is not that of the majority: key, value, value of the majority, its share."""
    for values in kinds.values():
        common, count = Counter(values.values()).most_common(1)[0]
        if len(values) >= ENOUGH and 2 * count > len(values):
            for key, value in values.items():
                if value != common:
                    yield key, value, common, f"{count} of {len(values)}"


def _text(name: str, *keys: str) -> Callable[[Machine], str | None]:
    """A function to the text of a fact; None where the fact is empty or was not read."""

    def value(machine: Machine) -> str | None:
        fact = machine.facts.get(name)
        words = [str(fact[key]) for key in keys if fact[key]] if isinstance(fact, Mapping) else [str(fact)]
        return " ".join(words) or None if fact not in (None, "") else None

    return value


def _driver(machine: Machine) -> str | None:
    version = machine.facts.get("driver.loaded_version")
    return None if version is None else version or "none loaded"


def _models(machine: Machine) -> Hashable:
    return tuple(sorted({gpu["device_id"] for gpu in machine.facts.get("pci.gpus") or ()}))


def _gpus(machine: Machine) -> str | None:
    return counted_ids(gpu["device_id"] for gpu in machine.facts.get("pci.gpus") or ()) or None


def _board(machine: Machine) -> Hashable:
    """The board, where the firmware names one."""
    values = tuple((machine.facts.get("system.board") or {}).values())
    return values if any(values) else ()


_TRAITS: tuple[tuple[str, Callable[[Machine], Hashable], Callable[[Machine], str | None]], ...] = (
    ("driver", _models, _driver),
    ("kernel", _text("system.os_release", "id", "version_id"), _text("system.running_kernel")),
    ("system", lambda _: "any", _text("system.os_release", "pretty_name")),
    ("GPUs", lambda machine: (_models(machine), _board(machine)), _gpus),
    ("BIOS", _board, _text("system.firmware", "vendor", "version", "date")),
    ("processors", _board, _text("system.cpu")),
    ("memory GiB", _board, _text("machine.machine", "memory_gib")),
)
"""Each trait with two functions of a machine: the key of comparable machines (empty: not compared), and the value."""


def _odd_gpus(group: str, members: Sequence[Machine]) -> Iterator[tuple[str, Finding]]:
    """Each GPU whose limits or VBIOS differ from most GPUs of its model in the group, without limits that a playbook
    sets; a VBIOS is compared within the same maker."""
    for trait, fact, alike in _GPU_TRAITS:
        kinds: dict[Hashable, dict[Any, str]] = defaultdict(dict)
        gpus = {gpu["uuid"]: (machine, gpu) for machine in members for gpu in machine.facts.get(fact) or ()}
        for uuid, (machine, gpu) in gpus.items():
            if uuid and gpu.get(trait) is not None and trait not in machine.held:
                kinds[tuple(gpu[key] for key in alike)][uuid] = _words(gpu[trait])
        for uuid, value, common, share in _odd(kinds):
            machine, gpu = gpus[uuid]
            subject = f"{gpu['bus_id']} {uuid[:SHORT_UUID]} {trait.replace('_', ' ')}"
            cause = f"{share} GPUs of this model in {group} have the expected value"
            yield machine.name, finding("peers", subject, value, common, cause)


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
        return ",".join(map(_words, value.values()))
    return f"{value:g}" if isinstance(value, float) else {True: "on", False: "off"}.get(value, str(value))
