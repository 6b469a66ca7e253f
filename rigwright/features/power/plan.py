"""The power plan: without limits, with limits, alternatives that fit, and their cost; the numbers that a rig lacks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from rigwright.catalogue import Model, Rig, model
from rigwright.catalogue.rigs import Supply
from rigwright.core.errors import UsageError
from rigwright.features.power.budget import BASE_IDLE_SHARE, BASE_W, VERDICTS, Budget, budget, circuits, models_of
from rigwright.features.power.draw import EFFICIENCY_PERCENT, FULL, Cost, Setting, cost, draw, require_supported
from rigwright.features.power.mains import MainsLoad

LIMIT_STEP_W = 5
MOST_SUPPLIES = 16
SMALLEST_SUPPLY_W, LARGEST_SUPPLY_W, SUPPLY_STEP_W = 300, 4000, 50
LEAST_REDUCTION = 0.05
"""A limit of power or clocks that is below the highest by less is no option."""


class Option(Struct, frozen=True):
    """A setting with the verdict `fits` or `tight`: its budget and its speed loss."""

    budget: Budget
    cost: Cost


class Plan(Struct, frozen=True):
    """The power plan of a machine. `limited`: None without limits. `larger`: sufficient supplies and plugs, as text."""

    rig: Rig
    full: Budget
    limited: Budget | None
    cost: Cost
    options: tuple[Option, ...]
    larger: tuple[str, ...]
    assumed: tuple[str, ...]
    price_per_kwh: float | None = None
    mains: MainsLoad | None = None

    @property
    def verdict(self) -> str:
        """The verdict of the supplies, or of the mains circuit if that is worse."""
        return max(self.chosen.verdict, self.mains.verdict if self.mains else "fits", key=VERDICTS.index)

    @property
    def chosen(self) -> Budget:
        """The budget that decides: with the requested limits, or without limits."""
        return self.limited or self.full

    @property
    def best(self) -> Setting:
        """The setting for the inventory: the best alternative, otherwise the requested one unless it does not fit."""
        if self.options:
            return self.options[0].budget.setting
        return FULL if self.chosen.verdict == "does not fit" else self.chosen.setting

    def cost_per_day(self, watts: float) -> float | None:
        """The cost of that power for 24 hours at the wall socket, in the price's currency; None without a price."""
        if self.price_per_kwh is None:
            return None
        return watts / EFFICIENCY_PERCENT * 100 * 24 / 1000 * self.price_per_kwh


def plan(rig: Rig, where: str, requested: Setting | None, price_per_kwh: float | None = None) -> Plan:
    """The plan of a rig with supported limits. Raises InputError without supplies, or if a GPU's power is unknown."""
    on = circuits(rig, where)
    models = models_of(rig)
    full = budget(rig, on)
    limited = budget(rig, on, requested) if requested else None
    chosen = limited or full
    options = tuple(_options(rig, models, chosen)) if chosen.verdict != "fits" else ()
    larger = {**dict(_larger(rig, chosen)), **dict(_larger(rig, full))}
    fitting = tuple(f"{which}: fits {at}" for which, at in larger.items())
    most = _highest_cost(models, requested or FULL)
    return Plan(rig, full, limited, most, options, fitting, tuple(_assumptions(rig, models)), price_per_kwh)


def _highest_cost(models: Mapping[str, Model], setting: Setting) -> Cost:
    """The highest speed loss of all GPUs; unknown if one is unknown."""
    costs = [cost(card, setting) for card in {card.key: card for card in models.values()}.values()]
    return max(costs, key=lambda each: math.inf if each.kind == "unknown" else each.percent)


def _options(rig: Rig, models: Mapping[str, Model], now: Budget) -> Iterator[Option]:
    """Alternatives: measured settings of these models, the highest power limit and the highest clock that fit.

    Supplies in parallel are known to fail with limits that are only tight for them.
    """
    on = tuple(load.circuit for load in now.loads)
    better = VERDICTS[: 1 if any(circuit.is_parallel for circuit in on) else VERDICTS.index(now.verdict)]
    measured = [Setting(known.power_limit_w, known.graphics_mhz) for card in models.values() for known in card.speed]
    limits = [Setting(watts, now.setting.graphics_mhz) for watts in _limits_w(models.values())]
    clocks = [Setting(now.setting.power_limit_w, mhz) for mhz in _clocks_mhz(models.values())]
    fitting: dict[Setting, Budget] = {}
    for verdict in better:
        for settings in (limits, clocks):
            trials = (budget(rig, on, candidate) for candidate in settings)
            if first := next((trial for trial in trials if trial.verdict == verdict), None):
                fitting[first.setting] = first
    for candidate in measured:
        with contextlib.suppress(UsageError):
            require_supported(models, candidate)
            trial = budget(rig, on, candidate)
            if trial.verdict in better:
                fitting[candidate] = trial
    ranked = sorted(fitting.values(), key=lambda candidate: (VERDICTS.index(candidate.verdict), -candidate.steady_w))
    return (Option(candidate, _highest_cost(models, candidate.setting)) for candidate in ranked)


def _limits_w(models: Collection[Model]) -> range:
    """Lower power limits that all models support, highest first; empty if the minimum of a model is unknown."""
    least = [card.power_w.min for card in models]
    if None in least:
        return range(0)
    low = math.ceil(max(watts or 0 for watts in least))
    high = int(min(card.power_w.default or 0 for card in models) * (1 - LEAST_REDUCTION))
    return range(high // LIMIT_STEP_W * LIMIT_STEP_W, low - 1, -LIMIT_STEP_W)


def _clocks_mhz(models: Collection[Model]) -> list[int]:
    """Lower clock limits that all models support, down to half of the highest; empty if a model supports none."""
    clocks = [card.clocks_mhz for card in models]
    spans = [(each.graphics_max, each.graphics_min, each.graphics_step) for each in clocks]
    settable = all({"application", "locked_graphics"} & set(card.clock_verbs) for card in models)
    if not settable or any(None in span for span in spans):
        return []
    high, _, step = min((high or 0, low or 0, step or 1) for high, low, step in spans)
    floor = max(high / 2, *(low or 0 for _, low, _ in spans))
    first = math.ceil(high * LEAST_REDUCTION / step)
    return [int(high - number * step) for number in range(first, int((high - floor) / step) + 1)]


def _larger(rig: Rig, now: Budget) -> Iterator[tuple[str, str]]:
    """Sufficient supplies and connectors for each circuit that does not fit, and the setting as text."""
    on = tuple(load.circuit for load in now.loads)
    at = "without limits" if now.setting == FULL else f"with {now.setting}"
    for number, load in enumerate(now.loads):
        if load.verdict == "fits":
            continue
        first = load.circuit.supplies[0]
        sizes = [(first.count + more, first.watts) for more in range(MOST_SUPPLIES)]
        if not load.circuit.is_parallel:
            larger = range(first.watts // SUPPLY_STEP_W * SUPPLY_STEP_W, LARGEST_SUPPLY_W + 1, SUPPLY_STEP_W)
            sizes = [sizes[0], *((1, watts) for watts in larger if watts > first.watts), *sizes[1:]]
        for count, watts in sizes:
            connectors = max(1, first.connectors * count // first.count)  # each supply keeps its connectors
            other = replace(first, count=count, watts=watts, connectors=connectors)
            circuit = replace(load.circuit, supplies=(other, *load.circuit.supplies[1:]))
            carried = budget(rig, (*on[:number], circuit, *on[number + 1 :]), now.setting).loads[number]
            if not [*carried.supply_reasons]:
                changes = [] if circuit == load.circuit else [f"{circuit.name} in place of {load.circuit.name}"]
                changes += [joint.stronger for joint in carried.joints if joint.is_weak]
                yield f"supply {number + 1}: {', with '.join(changes)}", at
                break


def _assumptions(rig: Rig, models: Mapping[str, Model]) -> Iterator[str]:
    for card in {card.key: card for card in models.values()}.values():
        yield from draw(card).assumed
    if rig.base_load_w is None:
        yield f"base load: {BASE_W} W; measure it at the wall, and write base_load_w into the rig"
    elif rig.sources.get("base_load_w", "").startswith("assumed"):
        yield f"base load: {rig.base_load_w} W"
    if rig.sources.get("supplies", "").startswith("assumed"):
        yield "supplies: " + rig.sources["supplies"].removeprefix("assumed:").strip()
    idle_percent = BASE_IDLE_SHARE * 100
    yield f"base load at idle: {idle_percent:.0f} % of it; supplies give {EFFICIENCY_PERCENT} % of what they take"


class Missing(Struct, frozen=True):
    """A missing number in words, the flag of `power.plan` for it with an example, and its line in a rig's file."""

    text: str
    flag: str
    line: str


def missing(rig: Rig, setting: Setting | None) -> list[Missing]:
    """The numbers that a plan with a setting needs and the rig lacks. The base load is never missing: it is assumed."""
    lacks = []
    unknown = positions_without_power(rig)
    if unknown:
        labels = ", ".join(f"{model(rig.gpus[position]).label} at {position}" for position in unknown)
        flag = f"--gpu-power-w {','.join(f'{position}=WATTS' for position in unknown)}"
        line = f"gpu_power_w: {{{', '.join(f'{position}: WATTS' for position in unknown)}}}"
        lacks.append(Missing(f"the default power limit of {labels}", flag, line))
    if not rig.supplies:
        watts = None if unknown else _smallest_supply_w(rig, setting or FULL)
        enough = f" (one of {watts} W would fit)" if watts else ""
        example = watts or "WATTS"
        text, line = f"the watts of its power supplies{enough}", f"supplies: [{{watts: {example}}}]"
        lacks.append(Missing(text, f"--supplies 1x{example}", line))
    return lacks


def positions_without_power(rig: Rig) -> list[str]:
    """The positions whose GPU's default power limit is not known."""
    return [position for position, card in models_of(rig).items() if card.power_w.default is None]


def _smallest_supply_w(rig: Rig, setting: Setting) -> int | None:
    """The watts of the smallest single supply with the verdict `fits`; None if LARGEST_SUPPLY_W does not suffice."""
    for watts in range(SMALLEST_SUPPLY_W, LARGEST_SUPPLY_W + 1, SUPPLY_STEP_W):
        on = circuits(replace(rig, supplies=(Supply(watts),)), rig.key)
        if budget(rig, on, setting).verdict == "fits":
            return watts
    return None
