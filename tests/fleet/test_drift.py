"""Drift: tests/cases/drift/ has the facts of several machines and exactly the findings that follow from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rigwright.fleet import gpu_places
from rigwright.fleet.drift import Machine, past, peers
from rigwright.fleet.gpu_places import Place
from tests.paths import CASES

FILES = sorted((CASES / "drift").glob("*.yml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_drift(path: Path) -> None:
    """Each finding has the values of the case; no machine has another finding."""
    case: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    machines = [
        Machine(name, tuple(one["groups"]), one["facts"], one.get("before", {}), frozenset(one.get("held", ())))
        for name, one in case["machines"].items()
    ]
    known = {uuid: Place(*where.split()) for uuid, where in case.get("known", {}).items()}
    for machine in machines:
        known.update({gpu["uuid"]: Place(machine.name, gpu["bus_id"]) for gpu in machine.before.get("gpu.gpus", ())})
    of_peers, of_gpus = peers(machines), gpu_places.changes(machines, known)
    for machine in machines:
        found = [*past(machine), *of_peers[machine.name], *of_gpus.get(machine.name, [])]
        wanted = case["findings"].get(machine.name, [])
        assert len(found) == len(wanted), found
        for finding, one in zip(found, wanted, strict=True):
            assert {key: getattr(finding, key) for key in one} == one
