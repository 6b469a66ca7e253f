"""The machines of the history, and which of them a host is: its identity decides, then its name and address."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from rigwright.core.machine_identity import MachineIdentity

TABLES = (
    """CREATE TABLE host (id INTEGER PRIMARY KEY, name TEXT NOT NULL, address TEXT NOT NULL, identity TEXT NOT NULL,
       simulated INTEGER NOT NULL)""",
    """CREATE TABLE place (host INTEGER NOT NULL REFERENCES host (id), name TEXT NOT NULL, address TEXT NOT NULL,
       first_seen REAL NOT NULL, last_seen REAL NOT NULL, told INTEGER NOT NULL, PRIMARY KEY (host, name, address)) WITHOUT ROWID""",
)
"""`host` has a row for each machine, with the name and address that it had last. `place` has all that it had, and
whether a finding has told that the machine is new under that name."""

K = TypeVar("K")
CHECK = "history.machine"
"""The name of the check whose finding tells of a machine that is new under its name."""


class Place(Struct, frozen=True):
    """A name and an address in the inventory, and when (seconds since 1970) a machine was first and last seen there."""

    name: str
    address: str
    first_seen: float
    last_seen: float
    told: bool


class RecordedMachine(Struct, frozen=True):
    """A machine of the history. `name` and `address` are the last of `places`. `baseline`: None if none is recorded."""

    id: int
    name: str
    address: str
    identity: MachineIdentity
    simulated: bool
    places: tuple[Place, ...] = ()
    baseline: Mapping[str, Any] | None = None

    @property
    def last_seen(self) -> float:
        """Seconds since 1970; 0.0 if it never was."""
        return max((place.last_seen for place in self.places), default=0.0)

    def at(self, name: str) -> tuple[Place, ...]:
        """Its places of that name."""
        return tuple(place for place in self.places if place.name == name)


class Match(Struct, frozen=True):
    """The machine of the history that a host is; None for a new one. The other keys tell what no finding has told yet.

    `former`: the place of the machine before it got its name. `predecessor`: another machine that had the name, and
    `until`: when it was seen last under it. `names_sharing`: the names of other machines in the history with the same
    identity. `undecided`: the machine is known under the name of another host of this run.
    """

    machine: RecordedMachine | None = None
    former: Place | None = None
    predecessor: RecordedMachine | None = None
    until: float = 0.0
    shared: tuple[str, ...] = ()
    undecided: bool = False

    @property
    def tells(self) -> bool:
        """Whether there is something to tell."""
        return bool(self.former or self.predecessor or self.shared)


class RecordedMachines(Struct, frozen=True, dict=True):
    """The machines of the history. `present`: the names of the hosts of this run."""

    machines: tuple[RecordedMachine, ...] = ()
    present: frozenset[str] = field(default_factory=frozenset)

    @cached_property
    def _at(self) -> dict[tuple[str, str], list[RecordedMachine]]:
        """The machines by their last name and address."""
        return _groups_of(((machine.name, machine.address), machine) for machine in self.machines)

    @cached_property
    def _with(self) -> dict[tuple[str, str, str], list[RecordedMachine]]:
        """The machines by the keys of their identities."""
        return _groups_of((key, machine) for machine in self.machines for key in machine.identity.keys)

    @cached_property
    def _machines_named(self) -> dict[str, list[RecordedMachine]]:
        """The machines by every name that they had."""
        names = ((machine, dict.fromkeys(place.name for place in machine.places)) for machine in self.machines)
        return _groups_of((name, machine) for machine, own in names for name in own)

    def match(
        self, name: str, address: str, identity: MachineIdentity, simulated: bool, *, own_only: bool = False,
        taken: Container[int] = (),
    ) -> Match:  # fmt: skip
        """The machine that a host with this name, address and identity is.

        `own_only`: another host of the run has the same identity, so only a machine that had this name before is taken.
        A machine that is known under the name of another host of the run is not taken: only the answers of both tell
        which it is. `taken`: the ids of machines that are other hosts of this run.
        """
        own = [machine for machine in self._at.get((name, address), ()) if machine.id not in taken]
        if not identity:
            return Match(_latest(own))
        near = {machine.id: machine for key in identity.keys_of_same for machine in self._with.get(key, ())}
        same = [near[id] for id in sorted(near) if id not in taken and identity.compared(near[id].identity) == "same"]
        named = [machine for machine in same if machine.at(name)]
        unknown = [machine for machine in own if identity.compared(machine.identity) == "unknown"]
        if not named and len(same) > 1 and not own_only:
            return Match(shared=tuple(sorted({machine.name for machine in same})))
        machine = _latest(named) or (None if own_only else _latest(same)) or _latest(unknown)
        if machine and machine.name != name and machine.name in self.present:
            return Match(undecided=True)
        if _has_finding(machine, name):
            return Match(machine)
        match = self._news(machine, name, simulated, identity, taken)
        more = {other.name for other in same if other is not machine}
        return replace(match, shared=tuple(sorted(more if machine and not own_only and match.former is None else ())))

    def _news(
        self, machine: RecordedMachine | None, name: str, simulated: bool, identity: MachineIdentity,
        taken: Container[int]
    ) -> Match:  # fmt: skip
        """The match, with what is new about the machine under that name."""
        before = [place for place in machine.places if place.name != name] if machine else []
        former = max(before, key=lambda place: place.last_seen, default=None)
        since = min((place.first_seen for place in machine.at(name)), default=float("inf")) if machine else float("inf")
        ends = [
            (max(place.last_seen for place in other.at(name)), other.id, other)
            for other in self._machines_named.get(name, ())
            if other.id not in taken
            and other.simulated == simulated
            and other.at(name)[0].first_seen < since
            and identity.compared(other.identity) == "other"
        ]
        until, _, predecessor = max(ends, default=(0.0, 0, None))
        return Match(machine, former, predecessor, until)


def _has_finding(machine: RecordedMachine | None, name: str) -> bool:
    return machine is not None and any(place.told for place in machine.at(name))


def _groups_of(pairs: Iterable[tuple[K, RecordedMachine]]) -> dict[K, list[RecordedMachine]]:
    groups: dict[K, list[RecordedMachine]] = {}
    for key, machine in pairs:
        groups.setdefault(key, []).append(machine)
    return groups


def _latest(machines: Collection[RecordedMachine]) -> RecordedMachine | None:
    return max(machines, key=lambda machine: machine.last_seen, default=None)


def names_sharing(identities: Mapping[str, MachineIdentity]) -> dict[str, tuple[str, ...]]:
    """By host name the other hosts of a run that have the same identity; only hosts that have such others."""
    having: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for name, identity in identities.items():
        for key in identity.keys:
            having[key].append(name)
    order = {name: number for number, name in enumerate(identities)}
    by_name = {}
    for name, mine in identities.items():
        near = {other for key in mine.keys_of_same for other in having.get(key, ())} - {name}
        same = [other for other in near if mine.compared(identities[other]) == "same"]
        if same:
            by_name[name] = tuple(sorted(same, key=order.__getitem__))
    return by_name


def read(database: sqlite3.Connection, present: Iterable[str] = ()) -> RecordedMachines:
    """All machines of the history."""
    places: dict[int, list[Place]] = defaultdict(list)
    for host, name, address, first_seen, last_seen, told in database.execute(
        "SELECT host, name, address, first_seen, last_seen, told FROM place ORDER BY host, first_seen"
    ):
        places[host].append(Place(name, address, first_seen, last_seen, bool(told)))
    rows = database.execute(
        "SELECT id, name, address, identity, simulated, baseline.value FROM host LEFT JOIN baseline ON host = id "
        "ORDER BY id"
    )
    machines = (
        RecordedMachine(
            id, name, address, MachineIdentity.of(json.loads(identity)), bool(simulated), tuple(places[id]),
            json.loads(baseline) if baseline else None,
        )
        for id, name, address, identity, simulated, baseline in rows
    )  # fmt: skip
    return RecordedMachines(tuple(machines), frozenset(present))


def record(
    database: sqlite3.Connection, match: Match, name: str, address: str, identity: MachineIdentity, simulated: bool,
    at: float, told: bool,
) -> int:  # fmt: skip
    """Records that a machine was seen at a place; returns its id. `told`: a finding of this run reports the match."""
    machine = match.machine
    merged = json.dumps(asdict(machine.identity.updated(identity) if machine else identity))
    if machine is None:
        columns = "(name, address, identity, simulated)"
        cursor = database.execute(f"INSERT INTO host {columns} VALUES (?, ?, ?, ?)", (name, address, merged, simulated))
        id = int(cursor.lastrowid or 0)
    else:
        id = machine.id
        changed = (name, address, merged, simulated or machine.simulated, id)
        database.execute("UPDATE host SET name = ?, address = ?, identity = ?, simulated = ? WHERE id = ?", changed)
    database.execute(
        "INSERT INTO place VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (host, name, address)"
        " DO UPDATE SET last_seen = max(last_seen, excluded.last_seen), told = max(told, excluded.told)",
        (id, name, address, at, at, bool(identity) and (told or not match.tells)),
    )
    return id
