"""The table of limits: for each GPU the limits that are expected, in force and supported."""

from __future__ import annotations

from typing import Any

from rigwright import catalogue
from rigwright.core.desired import GpuLimits, Limits
from rigwright.core.host_result import HostResult
from rigwright.core.schema import BusId
from rigwright.engine.host_run import HostRun
from rigwright.facts import Fact, pci
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.gpu.gpus import ClockPair, Gpu, Locks
from rigwright.operations.limits import wanted_of

FACTS: tuple[Fact[Any], ...] = (pci.gpus, gpu.gpus, gpu.locked)


class LimitsResult(HostResult, frozen=True):
    """One row per GPU, with one entry per limit."""

    KEY, FIELD = "gpus", "rows"
    rows: tuple[dict[str, Any], ...] = ()


def read(run: HostRun) -> LimitsResult:
    """The table of the host. Reads the facts that are not known in one round trip. Raises HostError if no GPU can be
    read."""
    parameters = [step.parameters for step in run.bound.steps]
    limits = next((given["limits"] for given in parameters if "limits" in given), Limits())
    slots: dict[BusId, str] = next((given["slots"] for given in parameters if given.get("slots")), {})
    run.read_unknown(FACTS)
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in run.value(pci.gpus)}
    locks = run.value(gpu.locked)
    return LimitsResult(
        tuple(
            _row(card, wanted_of(limits, card, models, slots), slots.get(BusId(card.bus_id), ""), locks)
            for card in run.value(gpu.gpus)
        )
    )


def _row(card: Gpu, limits: GpuLimits, position: str, locks: Locks) -> dict[str, Any]:
    clocks = limits.application_clocks
    without = clocks is not None and card.without_application_clocks
    pair = ClockPair(clocks.memory_mhz, clocks.graphics_mhz) if clocks and not without else ""
    watts = "" if card.power_min_w is None else f"{card.power_min_w:g}-{card.power_max_w:g} W"
    default = str(card.default_application_clocks or "")
    graphics, memory = (_span(locks.get((card.uuid, clock))) for clock in ("graphics", "memory"))
    return {
        "index": card.index,
        "position": position,
        "bus_id": card.bus_id,
        "uuid": card.uuid,
        "name": card.name,
        "lost": card.lost,
        "persistence": _limit(_on(limits.persistence), _on(card.persistence), "on, off", "off"),
        "power": _limit(_watts(limits.power_limit_w), _watts(card.power_limit_w), watts, _watts(card.power_default_w)),
        "application_clocks": _limit(
            str(pair),
            str(card.application_clocks or ""),
            "none on this GPU" if without else default and f"default {default}",
            default,
        ),
        "locked_graphics": _limit(_span(limits.locked_graphics_mhz), graphics),
        "locked_memory": _limit(_span(limits.locked_memory_mhz), memory),
    }


def _limit(expected: str, in_force: str, supported: str = "", default: str = "") -> dict[str, Any]:
    """`set_by`: `rigwright` (in force as expected), `default` (of the GPU), `somebody else`, or "" when not known."""
    by = "rigwright" if expected and expected == in_force else "default" if in_force == default else "somebody else"
    return {
        "expected": expected,
        "in_force": in_force,
        "supported": supported,
        "set_by": by if in_force else "",
        "drift": bool(expected) and expected != in_force,
    }


def _on(state: bool | None) -> str:
    return {True: "on", False: "off", None: ""}[state]


def _watts(value: float | None) -> str:
    return "" if value is None else f"{value:g} W"


def _span(value: tuple[int, int] | None) -> str:
    return "" if value is None else f"{value[0]}-{value[1]} MHz"
