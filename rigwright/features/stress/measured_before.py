"""What earlier stresses measured of the GPUs of a machine, as the history has it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from msgspec import Struct

from rigwright import catalogue
from rigwright.checks import own_past
from rigwright.core.typed_json import typed
from rigwright.engine.machine import MeasuredGpu
from rigwright.facts.gpu.figures import Dated, GpuFigures
from rigwright.facts.nccl import p2p_test as nccl
from rigwright.facts.nccl.p2p_test import PairFigures
from rigwright.features.stress import facts as stress
from rigwright.features.stress.facts import Kind
from rigwright.history import Changed, History, Seen


class DatedPair(Struct, frozen=True):
    """The figures of two GPUs, and when they were measured (ISO 8601, UTC)."""

    at: str
    figures: PairFigures


MeasuredPairs = dict[frozenset[str], DatedPair]
"""By the UUIDs of two GPUs the newest figures of the pair."""


Figures = dict[str, tuple[Dated, ...]]
"""By the UUID of a GPU its figures, oldest first."""


def recorded(past: History, machine: int | None) -> Figures:
    """The figures of all recorded stresses of a machine; {} for a new one. Raises HistoryError."""
    return by_gpu(past.every(machine, stress.measured.name))


def pairs(past: History, machine: int | None) -> MeasuredPairs:
    """The newest figures of each pair of GPUs of a machine, of all recorded peer-to-peer tests; {} for a new one.
    Raises HistoryError."""
    found: MeasuredPairs = {}
    for one in past.every(machine, nccl.tested.name):
        try:
            figures = typed(one.value, tuple[nccl.PairFigures, ...])
        except ValueError:
            continue  # another version wrote it
        found |= {frozenset(each.gpus): DatedPair(one.last_seen.isoformat(), each) for each in figures}
    return found


def of_machine(machine: Mapping[str, Any] | None, figures: Figures) -> tuple[MeasuredGpu, ...]:
    """The newest figures of each GPU of a machine that had a stress. `machine`: as the key `machine` in
    docs/reference/json.md."""
    gpus = (machine or {}).get("gpus", ())
    return tuple(_measured(gpu, figures[gpu["uuid"]][-1]) for gpu in gpus if gpu["uuid"] in figures)


def _measured(gpu: Mapping[str, Any], dated: Dated) -> MeasuredGpu:
    model = catalogue.model_of(gpu["device_id"]) if gpu["device_id"] else None
    one, peak = dated.figures, model.tflops if model else None
    figure_of = {
        kind: figure for kind in get_args(Kind) if kind in one.tflops and (figure := getattr(peak, kind, None))
    }
    bandwidth = model.memory_bandwidth_gb_s if model else None
    rates = {kind: one.tflops[kind] for kind in (*get_args(Kind), *one.tflops) if kind in one.tflops}
    return MeasuredGpu(
        gpu["bus_id"], gpu["uuid"], gpu["position"], gpu["name"] or one.name, dated.at, dated.run, one.power_limit_w, one.driver, rates,
        shares={kind: round(one.tflops[kind] / figure, 4) for kind, figure in figure_of.items()},
        clock_shares={
            kind: round(one.tflops[kind] / (figure * clock / peak.at_mhz), 4)
            for kind, figure in figure_of.items()
            if peak and (clock := one.clocks_mhz.get(kind))
        },
        memory_gb_s=one.memory_gb_s,
        memory_share=round(one.memory_gb_s / bandwidth, 4) if one.memory_gb_s and bandwidth else None,
        to_device_gb_s=one.to_device_gb_s,
        from_device_gb_s=one.from_device_gb_s,
        power_max_w=one.power_max_w,
        core_max_c=one.core_max_c,
        memory_max_c=one.memory_max_c,
        slowed_by=one.slowed_by,
    )  # fmt: skip


def became(past: History, machine: int | None, since: datetime.datetime) -> list[Changed]:
    """A line for each GPU and stress since a time in which its speed differed from earlier ones, oldest first. Raises
    HistoryError."""
    seen = past.every(machine, stress.measured.name)
    changes = []
    for number, one in enumerate(seen):
        if one.first_seen < since:
            continue
        before = by_gpu(seen[:number])
        for uuid, measured in by_gpu([one]).items():
            difference = own_past.difference(measured[0].figures, before.get(uuid, ()))
            if difference:
                subject = f"{stress.measured.name}[{uuid}] {difference.name}"
                speed = f"{difference.then:.1f} {difference.unit}"
                changes.append(Changed(one.first_seen, "fact", subject, speed, difference.brief, one.run))
    return changes


def by_gpu(seen: Sequence[Seen]) -> Figures:
    """The figures of recorded values of the fact. A value of another form, which another version wrote, is left out."""
    found: dict[str, list[Dated]] = {}
    for one in seen:
        try:
            figures = typed(one.value, tuple[GpuFigures, ...])
        except ValueError:
            continue
        for each in figures:
            found.setdefault(each.uuid, []).append(Dated(one.last_seen.isoformat(), one.run, each))
    return {uuid: tuple(dated) for uuid, dated in found.items()}
