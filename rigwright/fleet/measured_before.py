"""What earlier stresses measured of the GPUs of a machine, as the history has it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from rigwright.checks import own_past
from rigwright.core.typed_json import Codec
from rigwright.facts import stress
from rigwright.facts.gpu_figures import Dated, GpuFigures
from rigwright.history import Changed, History, Seen

Figures = dict[str, tuple[Dated, ...]]
"""By the UUID of a GPU its figures, oldest first."""


def recorded(past: History, machine: int | None) -> Figures:
    """The figures of all recorded stresses of a machine; {} for a new one. Raises HistoryError."""
    return by_gpu(past.every(machine, stress.measured.name))


def became(past: History, machine: int | None, since: datetime.datetime) -> list[Changed]:
    """A line for each GPU and stress since a time in which its speed differed from earlier ones, oldest first. Raises HistoryError."""
    seen = past.every(machine, stress.measured.name)
    changes = []
    for number, one in enumerate(seen):
        if one.first_seen < since:
            continue
        before = by_gpu(seen[:number])
        for uuid, measured in by_gpu([one]).items():
            difference = own_past.difference(measured[0].figures, before.get(uuid, ()))
            if difference:
                why = f"; {'; '.join(difference.settings)}" if difference.settings else ""
                subject = f"{stress.measured.name}[{uuid}] {difference.name}"
                speed = f"{difference.then:.1f} {difference.unit}"
                changes.append(Changed(one.first_seen, "fact", subject, speed, f"{difference.words}{why}", one.run))
    return changes


def by_gpu(seen: Sequence[Seen]) -> Figures:
    """The figures of recorded values of the fact. A value of another form, which another version wrote, is left out."""
    found: dict[str, list[Dated]] = {}
    for one in seen:
        try:
            figures = Codec().read(one.value, tuple[GpuFigures, ...])
        except ValueError:
            continue
        for each in figures:
            found.setdefault(each.uuid, []).append(Dated(one.last_seen.isoformat(), one.run, each))
    return {uuid: tuple(dated) for uuid, dated in found.items()}
