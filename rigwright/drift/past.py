"""A machine against its own past."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rigwright.checks import Finding
from rigwright.drift.machine import Machine, finding
from rigwright.history.differences import compared
from rigwright.positions import SHORT_UUID

Gpus = Sequence[Mapping[str, Any]]

_TITLES = {
    "os.release": "system",
    "os.architecture": "architecture",
    "os.running_kernel": "kernel",
    "os.board": "board",
    "os.cpu": "processors",
    "os.firmware": "BIOS",
    "driver.loaded_version": "driver",
    "driver.library_version": "driver's library",
    "driver.secure_boot": "Secure Boot",
    "machine.machine": "machine",
    "gpu.gpus": "",
    "card.cards": "",
}
_SEPARATORS = re.compile(r"[_.\[\]]+")
_MOMENTARY = ("index", "lost", "bus_id")


def past(machine: Machine) -> list[Finding]:
    """What a machine says of itself that it did not say before; GPUs that came or went are `placed`'s."""
    found = []
    for name, title in _TITLES.items():
        if name in machine.facts and name in machine.before:
            sides = machine.before[name], machine.facts[name]
            if name in ("gpu.gpus", "card.cards"):
                before, now = sides
                sides = _both(before, now, machine.held), _both(now, before, machine.held)
            for path, before, after in compared(*sides):
                subject = f"{title} {_SEPARATORS.sub(' ', path)}".strip()
                found.append(finding("past", subject, after, before))
    return list(dict.fromkeys(found))


def _both(gpus: Gpus, others: Gpus, held: Collection[str]) -> dict[str, dict[str, Any]]:
    """The GPUs that are in both, by their short UUID, without what is of the moment and what the playbook holds."""
    there = {one["uuid"] for one in others}
    kept = [one for one in gpus if one["uuid"] in there and one["uuid"]]
    return {
        one["uuid"][:SHORT_UUID]: {key: one[key] for key in one if key not in (*_MOMENTARY, "uuid", *held)}
        for one in kept
    }
