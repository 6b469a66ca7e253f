"""The plan: without limits, with limits, alternatives that fit, their cost in speed and money, and the inventory
lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from rigwright.catalogue import Model, Rig
from rigwright.catalogue.rigs import Supply
from rigwright.core.errors import UsageError
from rigwright.features.power.budget import (
    BASE_IDLE_SHARE,
    BASE_W,
    VERDICTS,
    Budget,
    Circuit,
    budget,
    circuits,
    models_of,
)
from rigwright.features.power.draw import EFFICIENCY_PERCENT, FULL, Cost, Setting, Wanted, checked, cost, draw

LIMIT_STEP_W = 5
MOST_SUPPLIES = 16
LARGEST_SUPPLY_W = 4000
SUPPLY_STEP_W = 50


class Option(Struct, frozen=True):
    """A setting that fits: its budget and its speed loss."""

    budget: Budget
    cost: Cost

    @property
    def verdict(self) -> str:
        """fits, or tight."""
        return self.budget.verdict


class Plan(Struct, frozen=True):
    """The power plan of a machine. `limited` is None without limits. `larger`: sufficient supplies, as text."""

    rig: Rig
    full: Budget
    limited: Budget | None
    cost: Cost
    options: tuple[Option, ...]
    larger: tuple[str, ...]
    assumed: tuple[str, ...]
    price_per_kwh: float | None = None

    @property
    def chosen(self) -> Budget:
        """The budget that decides: with the requested limits, or without limits."""
        return self.limited or self.full

    @property
    def best(self) -> Setting:
        """The setting for the inventory: the requested one if it fits, otherwise the best alternative."""
        if self.chosen.verdict == "fits" or not self.options:
            return self.chosen.setting
        first = self.options[0]
        better = VERDICTS.index(first.verdict) < VERDICTS.index(self.chosen.verdict)
        return first.budget.setting if better else self.chosen.setting

    def cost_per_day(self, watts: float) -> float | None:
        """The cost of that power for 24 hours at the wall socket, in the currency of the price; None without a
        price."""
        if self.price_per_kwh is None:
            return None
        return watts / EFFICIENCY_PERCENT * 100 * 24 / 1000 * self.price_per_kwh


def plan(rig: Rig, where: str, requested: Setting | None, price_per_kwh: float | None = None) -> Plan:
    """The plan of a rig with `checked` limits. Raises InputError without supplies, or if a GPU's power is unknown."""
    on = circuits(rig, where)
    models = models_of(rig)
    full = budget(rig, on)
    limited = budget(rig, on, requested) if requested else None
    chosen = limited or full
    options = tuple(_options(rig, on, models, chosen)) if chosen.verdict != "fits" else ()
    larger = {**dict(_larger(rig, on, chosen)), **dict(_larger(rig, on, full))}
    highest_cost = _highest_cost(models, requested or FULL)
    return Plan(
        rig,
        full,
        limited,
        highest_cost,
        options,
        tuple(f"{which}: fits {at}" for which, at in larger.items()),
        tuple(_assumed(rig, models)),
        price_per_kwh,
    )


def _highest_cost(models: Mapping[str, Model], setting: Setting) -> Cost:
    """The highest speed loss of all GPUs; unknown if one is unknown."""
    costs = [cost(item, setting) for item in {item.key: item for item in models.values()}.values()]
    unknown = next((item for item in costs if item.kind == "unknown"), None)
    return unknown or max(costs, key=lambda item: item.percent)


def _options(rig: Rig, on: tuple[Circuit, ...], models: Mapping[str, Model], now: Budget) -> Iterator[Option]:
    """Alternative settings: measured ones of these models, the highest fitting power limit, and the highest fitting
    clock."""
    measured = [Setting(known.power_limit_w, known.graphics_mhz) for model in models.values() for known in model.speed]
    limits = [Setting(watts, now.setting.graphics_mhz) for watts in limits_w(models.values())]
    clocks = [Setting(now.setting.power_limit_w, mhz) for mhz in clocks_mhz(models.values())]
    fitting: dict[Setting, Budget] = {}
    for verdict in VERDICTS[: VERDICTS.index(now.verdict)]:
        for settings in (limits, clocks):
            first = next(
                (trial for candidate in settings if (trial := budget(rig, on, candidate)).verdict == verdict), None
            )
            if first:
                fitting[first.setting] = first
    for candidate in measured:
        if _supported(models, candidate):
            trial = budget(rig, on, candidate)
            if VERDICTS.index(trial.verdict) < VERDICTS.index(now.verdict):
                fitting[candidate] = trial
    ranked = sorted(fitting.values(), key=lambda candidate: (VERDICTS.index(candidate.verdict), -candidate.steady_w))
    return (Option(candidate, _highest_cost(models, candidate.setting)) for candidate in ranked)


def limits_w(models: Iterable[Model]) -> range:
    """Power limits that all of them support, highest first; empty if the minimum of a model is unknown."""
    known = list(models)
    least = [model.power_w.min for model in known]
    if any(watts is None for watts in least):
        return range(0)
    low = math.ceil(max(watts or 0 for watts in least))
    high = int(min(model.power_w.default or 0 for model in known))
    return range(high // LIMIT_STEP_W * LIMIT_STEP_W, low - 1, -LIMIT_STEP_W)


def clocks_mhz(models: Iterable[Model]) -> list[int]:
    """Graphics clock limits that all of them support, from the highest to half of it; empty if one supports none."""
    known = list(models)
    if any(not {"application", "locked_graphics"} & set(model.clock_verbs) for model in known):
        return []
    spans = [
        (model.clocks_mhz.graphics_max, model.clocks_mhz.graphics_min, model.clocks_mhz.graphics_step)
        for model in known
    ]
    if any(None in span for span in spans):
        return []
    high, _, step = min((high or 0, low or 0, step or 1) for high, low, step in spans)
    floor = max(high / 2, *(low or 0 for _, low, _ in spans))
    return [int(high - number * step) for number in range(1, int((high - floor) / step) + 1)]


def _supported(models: Mapping[str, Model], setting: Setting) -> bool:
    """Whether every model supports the setting."""
    try:
        checked(models, Wanted(setting))
    except UsageError:
        return False
    return True


def _larger(rig: Rig, on: tuple[Circuit, ...], now: Budget) -> Iterator[tuple[str, str]]:
    """Sufficient supplies for each circuit that does not fit, and the setting as text."""
    at = "without limits" if now.setting == FULL else f"with {now.setting}"
    for number, load in enumerate(now.loads):
        if load.verdict == "fits":
            continue
        first = load.circuit.supplies[0]
        tried = [_with(first, first.count + more, first.watts) for more in range(1, MOST_SUPPLIES)]
        if load.circuit.left_w is None:
            start = first.watts // SUPPLY_STEP_W * SUPPLY_STEP_W + SUPPLY_STEP_W
            tried = [*(_with(first, 1, watts) for watts in range(start, LARGEST_SUPPLY_W + 1, SUPPLY_STEP_W)), *tried]
        for other in tried:
            circuit = replace(load.circuit, supplies=(other, *load.circuit.supplies[1:]))
            if budget(rig, (*on[:number], circuit, *on[number + 1 :]), now.setting).loads[number].verdict == "fits":
                yield f"supply {number + 1}: {circuit.name} in place of {load.circuit.name}", at
                break


def _with(supply: Supply, count: int, watts: int) -> Supply:
    """The supply with another number or power; each keeps its connectors."""
    return replace(supply, count=count, watts=watts, connectors=max(1, supply.connectors * count // supply.count))


def _assumed(rig: Rig, models: Mapping[str, Model]) -> Iterator[str]:
    """The assumptions of the plan."""
    for model in {model.key: model for model in models.values()}.values():
        yield from draw(model).assumed
    if rig.base_load_w is None:
        yield f"base load: {BASE_W} W; measure it at the wall, and write base_load_w into the rig"
    elif rig.sources.get("base_load_w", "").startswith("assumed"):
        yield f"base load: {rig.base_load_w} W"
    if rig.sources.get("supplies", "").startswith("assumed"):
        yield "supplies: " + rig.sources["supplies"].removeprefix("assumed:").strip()
    yield f"base load at idle: {BASE_IDLE_SHARE * 100:.0f} % of it; supplies give {EFFICIENCY_PERCENT} % of what they take"
