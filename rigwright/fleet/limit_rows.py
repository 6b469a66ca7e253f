"""The table of limits: for each GPU the limits that are expected, in force and supported."""

from __future__ import annotations

from typing import Any

from rigwright import catalogue
from rigwright.core.desired import GpuLimits, Limits
from rigwright.core.schema import BusId
from rigwright.engine.host_run import HostRun
from rigwright.engine.playbook import BoundPlaybook
from rigwright.facts import Fact, gpu, pci
from rigwright.facts.gpu import ClockPair, Gpu, Locks
from rigwright.operations.limits import wanted_of

FACTS: tuple[Fact[Any], ...] = (pci.gpus, gpu.gpus, gpu.locked)


def rows(run: HostRun, bound: BoundPlaybook) -> list[dict[str, Any]]:
    """One row per GPU, with one entry per limit. Reads the facts that are not known in one round trip.

    Raises HostError when no GPU can be read.
    """
    limits = next((step.parameters["limits"] for step in bound.steps if "limits" in step.parameters), Limits())
    slots: dict[BusId, str] = next(
        (step.parameters["slots"] for step in bound.steps if step.parameters.get("slots")), {}
    )
    missing = [fact for fact in FACTS if fact not in run.store.known]
    if missing:
        run.read(missing)
    models = {one.bus_id: catalogue.model_of(one.device_id) for one in run.value(pci.gpus)}
    locks = run.value(gpu.locked)
    return [
        _row(one, wanted_of(limits, one, models, slots), slots.get(BusId(one.bus_id), ""), locks)
        for one in run.value(gpu.gpus)
    ]


def _row(one: Gpu, limits: GpuLimits, position: str, locks: Locks) -> dict[str, Any]:
    clocks = limits.application_clocks
    pair = ClockPair(clocks.memory_mhz, clocks.graphics_mhz) if clocks else None
    power_span = "" if one.power_min_w is None else f"{one.power_min_w:g}-{one.power_max_w:g} W"
    default = one.default_application_clocks
    return {
        "index": one.index,
        "position": position,
        "bus_id": one.bus_id,
        "uuid": one.uuid,
        "name": one.name,
        "lost": one.lost,
        "persistence": _limit(_on(limits.persistence), _on(one.persistence), "on, off", "off"),
        "power": _limit(
            _watts(limits.power_limit_w), _watts(one.power_limit_w), power_span, _watts(one.power_default_w)
        ),
        "application_clocks": _limit(
            str(pair or ""),
            str(one.application_clocks or ""),
            f"default {default}" if default else "",
            str(default or ""),
        ),
        "locked_graphics": _limit(_span(limits.locked_graphics_mhz), _span(locks.get((one.uuid, "graphics"))), "", ""),
        "locked_memory": _limit(_span(limits.locked_memory_mhz), _span(locks.get((one.uuid, "memory"))), "", ""),
    }


def _limit(wanted: str, in_force: str, supported: str, default: str) -> dict[str, Any]:
    """`set_by`: `rigwright` (in force as expected), `default` (of the GPU), `somebody else`, or "" when not known."""
    by = "rigwright" if wanted and wanted == in_force else "default" if in_force == default else "somebody else"
    return {
        "expected": wanted,
        "in_force": in_force,
        "supported": supported,
        "set_by": by if in_force else "",
        "drift": bool(wanted) and wanted != in_force,
    }


def _on(state: bool | None) -> str:
    return {True: "on", False: "off", None: ""}[state]


def _watts(value: float | None) -> str:
    return "" if value is None else f"{value:g} W"


def _span(value: tuple[int, int] | None) -> str:
    return "" if value is None else f"{value[0]}-{value[1]} MHz"
