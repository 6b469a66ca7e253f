"""Differences of a machine from its own past."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rigwright.checks import Finding
from rigwright.core.gpu_labels import SHORT_UUID
from rigwright.fleet.drift._machine import Machine, finding
from rigwright.history.json_diff import compared

Gpus = Sequence[Mapping[str, Any]]

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
_SEPARATORS = re.compile(r"[_.\[\]]+")
_MOMENTARY = ("index", "lost", "bus_id")


def past(machine: Machine) -> list[Finding]:
    """The facts of a machine that changed; `placed` finds GPUs that were added or removed."""
    findings = []
    for name, title in _TITLES.items():
        if name in machine.facts and name in machine.before:
            sides = machine.before[name], machine.facts[name]
            if name in ("gpu.gpus", "gpu_health.cards"):
                before, now = sides
                sides = _both(before, now, machine.held), _both(now, before, machine.held)
            for path, before, after in compared(*sides):
                subject = f"{title} {_SEPARATORS.sub(' ', path)}".strip()
                findings.append(finding("past", subject, after, before))
    return list(dict.fromkeys(findings))


def _both(gpus: Gpus, others: Gpus, held: Collection[str]) -> dict[str, dict[str, Any]]:
    """The GPUs that are in both, by short UUID, without momentary values and those that the playbook sets."""
    other_uuids = {gpu["uuid"] for gpu in others}
    return {
        gpu["uuid"][:SHORT_UUID]: {key: gpu[key] for key in gpu if key not in (*_MOMENTARY, "uuid", *held)}
        for gpu in gpus
        if gpu["uuid"] and gpu["uuid"] in other_uuids
    }
