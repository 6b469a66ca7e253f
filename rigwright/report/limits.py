"""The table of limits: what is wanted, in force and supported, GPU by GPU."""

from __future__ import annotations

from typing import Any

from rigwright.apply import HostRun
from rigwright.facts import gpu
from rigwright.facts.gpu import ClockPair, Gpu
from rigwright.playbook import Bound
from rigwright.wanted import Limits


def rows(run: HostRun, bound: Bound) -> list[dict[str, Any]]:
    """One row per GPU, with one entry per limit. Raises Unavailable when the GPUs cannot be read."""
    limits = next((step.parameters["limits"] for step in bound.steps if "limits" in step.parameters), Limits())
    slots: dict[str, str] = next((step.parameters["slots"] for step in bound.steps if step.parameters.get("slots")), {})
    return [_row(one, limits, slots.get(one.bus_id, "")) for one in run.value(gpu.gpus)]


def _row(one: Gpu, limits: Limits, position: str) -> dict[str, Any]:
    clocks = limits.application_clocks
    pair = ClockPair(clocks.memory_mhz, clocks.graphics_mhz) if clocks else None
    power_span = "" if one.power_min_w is None else f"{one.power_min_w:g}-{one.power_max_w:g} W"
    default = f"default {one.default_application_clocks}" if one.default_application_clocks else ""
    return {
        "index": one.index,
        "position": position,
        "bus_id": one.bus_id,
        "uuid": one.uuid,
        "name": one.name,
        "persistence": _limit(_on(limits.persistence), _on(one.persistence), "on, off"),
        "power": _limit(_watts(limits.power_limit_w), _watts(one.power_limit_w), power_span),
        "application_clocks": _limit(str(pair or ""), str(one.application_clocks or ""), default),
    }


def _limit(wanted: str, in_force: str, supported: str) -> dict[str, Any]:
    return {
        "wanted": wanted,
        "in_force": in_force,
        "supported": supported,
        "drift": bool(wanted) and wanted != in_force,
    }


def _on(state: bool | None) -> str:
    return {True: "on", False: "off", None: ""}[state]


def _watts(value: float | None) -> str:
    return "" if value is None else f"{value:g} W"
