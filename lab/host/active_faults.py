"""The record of a host's active faults. lab/faults/inject.py writes it; it is deleted with the host."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.base.paths import RUN, write


@dataclass(frozen=True)
class Standing:
    """An active fault. `gpu` is None for the whole host; `boots` is the number of reboots it lasts (None: no end)."""

    name: str
    gpu: int | None
    boots: int | None

    def __str__(self) -> str:
        """Returns the fault as lab.status shows it: gpu-lost(2)."""
        return self.name if self.gpu is None else f"{self.name}({self.gpu})"


def standing(name: str) -> list[Standing]:
    """Returns the active faults of the host, oldest first."""
    path = _record(name)
    return [Standing(**one) for one in json.loads(path.read_text())] if path.is_file() else []


def save(name: str, held: list[Standing]) -> None:
    """Replaces the recorded faults of the host with `held`."""
    write(_record(name), json.dumps([asdict(one) for one in held]) + "\n")


def booted(name: str) -> None:
    """Removes from the record the faults that end with a new boot."""
    held = standing(name)
    left = [one for one in held if one.boots is None or one.boots > 0]
    if held:
        save(name, [Standing(one.name, one.gpu, None if one.boots is None else one.boots - 1) for one in left])


def _record(name: str) -> Path:
    return RUN / f"{name}.faults"
