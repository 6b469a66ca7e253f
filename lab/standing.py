"""Owns which faults a host has (lab/fault.py puts them in): written beside its boots, gone with the host."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.paths import RUN, write


@dataclass(frozen=True)
class Standing:
    """A fault that a host has: on which GPU (None: on none in particular), and how many boots it still outlives."""

    name: str
    gpu: int | None
    boots: int | None

    def __str__(self) -> str:
        """As lab.status shows it: gpu-lost(2)."""
        return self.name if self.gpu is None else f"{self.name}({self.gpu})"


def standing(name: str) -> list[Standing]:
    """The faults that the host has, the oldest first."""
    path = _record(name)
    return [Standing(**one) for one in json.loads(path.read_text())] if path.is_file() else []


def save(name: str, held: list[Standing]) -> None:
    """The host has these faults."""
    write(_record(name), json.dumps([asdict(one) for one in held]) + "\n")


def booted(name: str) -> None:
    """A boot has begun: what does not outlive it is forgotten."""
    held = standing(name)
    left = [one for one in held if one.boots is None or one.boots > 0]
    if held:
        save(name, [Standing(one.name, one.gpu, None if one.boots is None else one.boots - 1) for one in left])


def _record(name: str) -> Path:
    return RUN / f"{name}.faults"
