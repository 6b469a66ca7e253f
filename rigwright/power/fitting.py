"""The whole plan: without limits, with them, what else would fit, what that costs in speed and money, and what to type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from rigwright.catalogue import Model, Rig
from rigwright.catalogue.rigs import Supply
from rigwright.power.budget import BASE_IDLE_SHARE, BASE_W, VERDICTS, Budget, Circuit, budget, circuits, models_of
from rigwright.power.draw import EFFICIENCY_PERCENT, FULL, Cost, Setting, cost, draw

LIMIT_STEP_W = 5
MOST_SUPPLIES = 16
LARGEST_SUPPLY_W = 4000
SUPPLY_STEP_W = 50


@dataclass(frozen=True)
class Option:
    """A setting that would do: its budget, and what it costs in speed."""

    budget: Budget
    cost: Cost

    @property
    def verdict(self) -> str:
        """fits, or tight."""
        return self.budget.verdict


@dataclass(frozen=True)
class Plan:
    """A machine's power. `limited` None: no limits were asked for. `larger`: supplies that would do, in words."""

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
        """What is decided on: with the limits that were asked for, else without."""
        return self.limited or self.full

    @property
    def best(self) -> Setting:
        """What to put into the inventory: what was asked for where it fits, else the best option."""
        if self.chosen.verdict == "fits" or not self.options:
            return self.chosen.setting
        first = self.options[0]
        better = VERDICTS.index(first.verdict) < VERDICTS.index(self.chosen.verdict)
        return first.budget.setting if better else self.chosen.setting

    def cost_per_day(self, watts: float) -> float | None:
        """What that draw costs in 24 hours at the wall, in the price's currency; None without a price."""
        if self.price_per_kwh is None:
            return None
        return watts / EFFICIENCY_PERCENT * 100 * 24 / 1000 * self.price_per_kwh


def plan(rig: Rig, where: str, wanted: Setting | None, price_per_kwh: float | None = None) -> Plan:
    """The plan of a rig; `wanted` are limits that its GPUs take (`checked`). Raises InputError when supplies are missing."""
    on = circuits(rig, where)
    models = models_of(rig)
    full = budget(rig, on)
    limited = budget(rig, on, wanted) if wanted else None
    chosen = limited or full
    options = tuple(_options(rig, on, models, chosen)) if chosen.verdict != "fits" else ()
    larger = {**dict(_larger(rig, on, chosen)), **dict(_larger(rig, on, full))}
    dearest = _dearest(models, wanted or FULL)
    return Plan(
        rig,
        full,
        limited,
        dearest,
        options,
        tuple(f"{which}: fits {at}" for which, at in larger.items()),
        tuple(_assumed(rig, models)),
        price_per_kwh,
    )


def _dearest(models: Mapping[str, Model], setting: Setting) -> Cost:
    """The cost to the GPU that loses most; unknown where one's is."""
    found = [cost(one, setting) for one in {one.key: one for one in models.values()}.values()]
    unknown = next((one for one in found if one.kind == "unknown"), None)
    return unknown or max(found, key=lambda one: one.percent)


def _options(rig: Rig, on: tuple[Circuit, ...], models: Mapping[str, Model], now: Budget) -> Iterator[Option]:
    """Settings that are better than now: what was measured of these models, the highest limit and the highest clock."""
    measured = [Setting(known.power_limit_w, known.graphics_mhz) for model in models.values() for known in model.speed]
    limits = [Setting(watts, now.setting.graphics_mhz) for watts in limits_w(models.values())]
    clocks = [Setting(now.setting.power_limit_w, mhz) for mhz in clocks_mhz(models.values())]
    found: dict[Setting, Budget] = {}
    for verdict in VERDICTS[: VERDICTS.index(now.verdict)]:
        for settings in (limits, clocks):
            first = next((made for one in settings if (made := budget(rig, on, one)).verdict == verdict), None)
            if first:
                found[first.setting] = first
    for one in measured:
        if _taken(models.values(), one):
            made = budget(rig, on, one)
            if VERDICTS.index(made.verdict) < VERDICTS.index(now.verdict):
                found[one] = made
    ranked = sorted(found.values(), key=lambda one: (VERDICTS.index(one.verdict), -one.steady_w))
    return (Option(one, _dearest(models, one.setting)) for one in ranked)


def limits_w(models: Iterable[Model]) -> range:
    """Power limits that all of them take, highest first: from the lowest default down to the highest minimum.

    Where a minimum is not known, no limit is offered.
    """
    known = list(models)
    least = [one.power_w.min for one in known]
    if any(watts is None for watts in least):
        return range(0)
    low = math.ceil(max(watts or 0 for watts in least))
    high = int(min(one.power_w.default or 0 for one in known))
    return range(high // LIMIT_STEP_W * LIMIT_STEP_W, low - 1, -LIMIT_STEP_W)


def clocks_mhz(models: Iterable[Model]) -> list[int]:
    """Highest graphics clocks that all of them take, from the highest down to half of it; none where one takes none."""
    known = list(models)
    if any(not {"application", "locked_graphics"} & set(one.clock_verbs) for one in known):
        return []
    spans = [(one.clocks_mhz.graphics_max, one.clocks_mhz.graphics_min, one.clocks_mhz.graphics_step) for one in known]
    if any(None in span for span in spans):
        return []
    high, _, step = min((high or 0, low or 0, step or 1) for high, low, step in spans)
    floor = max(high / 2, *(low or 0 for _, low, _ in spans))
    return [int(high - number * step) for number in range(1, int((high - floor) / step) + 1)]


def _taken(models: Iterable[Model], setting: Setting) -> bool:
    """Whether every model takes the setting."""
    for one in models:
        low, high = one.power_w.min, one.power_w.max
        if setting.power_limit_w is not None and not (low or 0) <= setting.power_limit_w <= (high or math.inf):
            return False
        clocks = one.clocks_mhz
        sets = {"application", "locked_graphics"} & set(one.clock_verbs)
        if setting.graphics_mhz is not None and not (
            sets and (clocks.graphics_min or 0) <= setting.graphics_mhz <= (clocks.graphics_max or 0)
        ):
            return False
    return True


def _larger(rig: Rig, on: tuple[Circuit, ...], now: Budget) -> Iterator[tuple[str, str]]:
    """Supplies that would carry the setting, for each circuit that does not fit, and the setting in words."""
    at = "without limits" if now.setting == FULL else f"with {now.setting}"
    for number, load in enumerate(now.loads):
        if load.verdict == "fits":
            continue
        one = load.circuit.supplies[0]
        tried = [_with(one, one.count + more, one.watts) for more in range(1, MOST_SUPPLIES)]
        if load.circuit.left_w is None:
            start = one.watts // SUPPLY_STEP_W * SUPPLY_STEP_W + SUPPLY_STEP_W
            tried = [*(_with(one, 1, watts) for watts in range(start, LARGEST_SUPPLY_W + 1, SUPPLY_STEP_W)), *tried]
        for other in tried:
            circuit = replace(load.circuit, supplies=(other, *load.circuit.supplies[1:]))
            if budget(rig, (*on[:number], circuit, *on[number + 1 :]), now.setting).loads[number].verdict == "fits":
                yield f"supply {number + 1}: {circuit.name} in place of {load.circuit.name}", at
                break


def _with(one: Supply, count: int, watts: int) -> Supply:
    """The supply in another number or size; each keeps its connectors."""
    return replace(one, count=count, watts=watts, connectors=max(1, one.connectors * count // one.count))


def _assumed(rig: Rig, models: Mapping[str, Model]) -> Iterator[str]:
    """What the plan rests on that nobody has measured."""
    for one in {one.key: one for one in models.values()}.values():
        yield from draw(one).assumed
    if rig.base_load_w is None:
        yield f"base load: {BASE_W} W; measure it at the wall, and write base_load_w into the rig"
    elif rig.sources.get("base_load_w", "").startswith("assumed"):
        yield f"base load: {rig.base_load_w} W"
    if rig.sources.get("supplies", "").startswith("assumed"):
        yield "supplies: " + rig.sources["supplies"].removeprefix("assumed:").strip()
    yield f"base load at idle: {BASE_IDLE_SHARE * 100:.0f} % of it; supplies give {EFFICIENCY_PERCENT} % of what they take"
