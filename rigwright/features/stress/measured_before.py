"""The recorded figures of earlier stresses and peer-to-peer tests of a machine."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
from msgspec import Struct

from rigwright import catalogue
from rigwright.checks import own_past
from rigwright.engine.machine import MeasuredGpu
from rigwright.facts.gpu.figures import Dated, GpuFigures
from rigwright.facts.nccl import p2p_test as nccl
from rigwright.facts.nccl.p2p_test import PairFigures
from rigwright.features.stress import facts as stress
from rigwright.features.stress.facts import Kind
from rigwright.history import Changed, History, Seen


class DatedPair(Struct, frozen=True):
    """The figures of two GPUs, and the time of the measurement (ISO 8601, UTC)."""

    at: str
    figures: PairFigures


MeasuredPairs = dict[frozenset[str], DatedPair]
"""By the UUIDs of two GPUs the newest figures of the pair."""
Figures = dict[str, tuple[Dated, ...]]
"""By the UUID of a GPU its figures, oldest first."""


def recorded(past: History, machine: int | None) -> Figures:
    """The figures of all recorded stresses of a machine; {} for a new one. Raises HistoryError."""
    return _by_gpu(past.every(machine, stress.measured.name))


def pairs(past: History, machine: int | None) -> MeasuredPairs:
    """The newest figures of each pair of GPUs of a machine, of all recorded peer-to-peer tests; {} for a new one.
    Raises HistoryError."""
    every = past.figures(machine, nccl.tested.name, PairFigures)
    return {frozenset(pair.gpus): DatedPair(at, pair) for at, _, pair in every}


def of_machine(machine: Mapping[str, Any] | None, figures: Figures) -> tuple[MeasuredGpu, ...]:
    """The newest figures of each GPU of a machine that had a stress. `machine`: as the key `machine` in
    docs/reference/json.md."""
    gpus = (machine or {}).get("gpus", ())
    return tuple(_measured(gpu, figures[gpu["uuid"]][-1]) for gpu in gpus if gpu["uuid"] in figures)


def _measured(gpu: Mapping[str, Any], dated: Dated) -> MeasuredGpu:
    model = catalogue.model_of(gpu["device_id"]) if gpu["device_id"] else None
    figures, peak = dated.figures, model.tflops if model else None
    kinds = [kind for kind in get_args(Kind) if kind in figures.tflops]
    rates = {kind: figures.tflops[kind] for kind in (*kinds, *figures.tflops)}
    peaks = {kind: rate for kind in kinds if (rate := getattr(peak, kind, None))}
    bandwidth = model.memory_bandwidth_gb_s if model else None
    return MeasuredGpu(
        gpu["bus_id"], gpu["uuid"], gpu["position"], gpu["name"] or figures.name, dated.at, dated.run,
        figures.power_limit_w, figures.driver, rates,
        shares={kind: round(rates[kind] / rate, 4) for kind, rate in peaks.items()},
        clock_shares={
            kind: round(rates[kind] / (rate * clock / peak.at_mhz), 4)
            for kind, rate in peaks.items()
            if peak and (clock := figures.clocks_mhz.get(kind))
        },
        memory_share=round(figures.memory_gb_s / bandwidth, 4) if figures.memory_gb_s and bandwidth else None,
        **{name: getattr(figures, name) for name in _SAME_NAMES},
    )  # fmt: skip


_SAME_NAMES = (
    "memory_gb_s", "to_device_gb_s", "from_device_gb_s", "power_max_w", "core_max_c", "memory_max_c", "slowed_by",
)  # fmt: skip


def became(past: History, machine: int | None, since: datetime.datetime) -> list[Changed]:
    """A change for each GPU and stress since a time in which its speed differed from earlier ones, oldest first. Raises
    HistoryError."""
    values = past.every(machine, stress.measured.name)
    changes = []
    for number, value in enumerate(values):
        if value.first_seen < since:
            continue
        before = _by_gpu(values[:number])
        for uuid, (measured, *_) in _by_gpu([value]).items():
            if difference := own_past.difference(measured.figures, before.get(uuid, ())):
                subject = f"{stress.measured.name}[{uuid}] {difference.name}"
                speed = f"{difference.then:.1f} {difference.unit}"
                changes.append(Changed(value.first_seen, "fact", subject, speed, difference.brief, value.run))
    return changes


def _by_gpu(values: Sequence[Seen]) -> Figures:
    """The figures in recorded values of the fact, also of an older version without some of the optional ones. A value
    in another form is left out."""
    by_gpu: Figures = {}
    for value in values:
        try:
            measured = msgspec.convert(value.value, tuple[GpuFigures, ...])
        except ValueError:
            continue
        for figures in measured:
            dated = Dated(value.last_seen.isoformat(), value.run, figures)
            by_gpu[figures.uuid] = (*by_gpu.get(figures.uuid, ()), dated)
    return by_gpu
