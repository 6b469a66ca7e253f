"""The table of limits: what is wanted, in force and supported, GPU by GPU."""

from __future__ import annotations

from typing import Any

from rigwright.apply import HostRun
from rigwright.facts import gpu
from rigwright.facts.gpu import ClockPair, Gpu
from rigwright.playbook import Bound
from rigwright.wanted import Limits


def rows(run: HostRun, bound: Bound) -> list[dict[str, Any]]:
    """One row per GPU and limit. Raises HostError or Unavailable's reason when the GPUs cannot be read."""
    limits = next((step.parameters["limits"] for step in bound.steps if "limits" in step.parameters), Limits())
    return [row for one in run.value(gpu.gpus) for row in _rows(one, limits)]


def _rows(one: Gpu, limits: Limits) -> list[dict[str, Any]]:
    clocks = limits.application_clocks
    pair = ClockPair(clocks.memory_mhz, clocks.graphics_mhz) if clocks else None
    power_span = "N/A" if one.power_min_w is None else f"{one.power_min_w:g}-{one.power_max_w:g} W"
    table = (
        ("persistence", _on(limits.persistence), _on(one.persistence), "on, off"),
        ("power", _watts(limits.power_limit_w), _watts(one.power_limit_w), power_span),
        (
            "clocks",
            str(pair) if pair else "-",
            str(one.application_clocks or "N/A"),
            f"default {one.default_application_clocks or 'N/A'}",
        ),
    )
    return [
        {
            "position": one.bus_id if not number else "",
            "gpu": f"{one.index} {one.name}" if not number else "",
            "limit": limit,
            "wanted": wanted,
            "in_force": now,
            "supported": supported,
            "drift": wanted not in ("-", now),
        }
        for number, (limit, wanted, now, supported) in enumerate(table)
    ]


def _on(state: bool | None) -> str:
    return {True: "on", False: "off", None: "-"}[state]


def _watts(value: float | None) -> str:
    return "-" if value is None else f"{value:g} W"
