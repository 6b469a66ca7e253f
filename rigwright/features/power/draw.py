"""The power of one GPU with a power limit and a clock limit, and the cost in speed.

docs/guide/power.md has the factors with their sources and the assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from rigwright.catalogue import Model
from rigwright.core.desired import Limits
from rigwright.core.errors import InputError, UsageError

CLOCK_EXPONENT = math.log(350 / 200) / math.log(1530 / 1005)
RAMP_FROM = 0.5
RAMP_TO = 1.2
PEAK_FACTOR = 1.2
PEAK_FACTOR_GEFORCE = 1.7
IDLE_SHARE = {"P0": 0.15, "P8": 0.10, "P12": 0.10}
IDLE_STATE = "P8"
"""The idle state of a card that the catalogue does not describe (assumed: the state of most others)."""
EFFICIENCY_PERCENT = 90


class Setting(Struct, frozen=True):
    """Limits of every GPU; None: its default power limit, its highest clocks."""

    power_limit_w: int | None = None
    graphics_mhz: int | None = None

    def __str__(self) -> str:
        """`200 W, 1005 MHz`."""
        limits = (self.power_limit_w, "W"), (self.graphics_mhz, "MHz")
        return ", ".join(f"{value} {unit}" for value, unit in limits if value is not None) or "no limits"


FULL = Setting()


class Draw(Struct, frozen=True):
    """Power of one GPU, W: sustained, peak, ramp and idle. `assumed`: texts about values that were not measured."""

    steady_w: float
    peak_w: float
    ramp_w: float
    idle_w: float
    assumed: tuple[str, ...] = ()


class Cost(Struct, frozen=True):
    """The speed loss of a setting in percent: `exactly` (measured), `at least`, `at most`, or `unknown`."""

    kind: str
    percent: float = 0.0
    source: str = ""

    def __str__(self) -> str:
        """`about 13 % of the speed`."""
        words = {"exactly": "about", "at least": "at least", "at most": "at most"}
        if self.kind == "unknown":
            return "an unknown part of the speed"
        return f"{words[self.kind]} {self.percent:g} % of the speed" if self.percent else "no speed"


def setting_of(limits: Limits | None) -> Setting | None:
    """The part of an inventory's `limits` that limits power, or None."""
    if limits is None:
        return None
    clocks, locked = limits.application_clocks, limits.locked_graphics_mhz
    mhz = clocks.graphics_mhz if clocks else locked[1] if locked else None
    setting = Setting(limits.power_limit_w, mhz)
    return None if setting == FULL else setting


def draw(model: Model, setting: Setting = FULL) -> Draw:
    """The power of one GPU of the model. Raises InputError if the model has no default limit."""
    power = model.power_w
    if power.default is None:
        where = f"{model.key} ({model.label})"
        raise InputError(where, "its default power limit is not known", "power_w: {default: WATTS}")
    limit = power.default if setting.power_limit_w is None else float(setting.power_limit_w)
    share = clock_share(model, setting.graphics_mhz)
    assumed = []
    peak = power.peak
    if peak is None:
        newer = model.architecture in ("Ampere", "Ada", "Hopper", "Blackwell")
        factor = PEAK_FACTOR_GEFORCE if newer and "GeForce" in model.name else PEAK_FACTOR
        peak = power.default * factor
        assumed.append(f"peak of {model.label}: {peak:.0f} W, {factor:g} times its default")
    ramp = min(peak, power.default * RAMP_TO) - power.default * RAMP_FROM
    peak *= max(1.0, limit / power.default)
    idle = model.idle.power_w if model.idle else None
    if idle is None:
        idle_share = IDLE_SHARE[model.idle.state if model.idle else IDLE_STATE]
        idle = power.default * idle_share
        assumed.append(f"idle draw of {model.label}: {idle:.0f} W, {idle_share * 100:.0f} % of its default")
    return Draw(min(limit, peak * share), peak * share, ramp * share, idle, tuple(assumed))


def clock_share(model: Model, graphics_mhz: int | None) -> float:
    """The fraction of its power that a GPU draws with a clock limit in MHz; 1 if its highest clock is unknown."""
    highest = model.clocks_mhz.graphics_max
    if graphics_mhz is None or highest is None or graphics_mhz >= highest:
        return 1.0
    return float((graphics_mhz / highest) ** CLOCK_EXPONENT)


def cost(model: Model, setting: Setting) -> Cost:
    """The speed loss of a setting: a measured figure of the model, or a bound that measured figures give."""
    if clock_share(model, setting.graphics_mhz) == 1 and draw(model, setting).steady_w >= (model.power_w.default or 0):
        return Cost("exactly")
    source = model.sources.get("speed", "")
    least, most = 0.0, None
    for known in model.speed:
        point = Setting(known.power_limit_w, known.graphics_mhz)
        if point == setting:
            return Cost("exactly", known.cost_percent, source)
        if _permits_more(model, point, setting):
            least = max(least, known.cost_percent)
        elif _permits_more(model, setting, point):
            most = known.cost_percent if most is None else min(most, known.cost_percent)
    if least:
        return Cost("at least", least, source)
    return Cost("unknown") if most is None else Cost("at most", most, source)


def _permits_more(model: Model, first: Setting, second: Setting) -> bool:
    """Whether the first setting permits at least the power and clock of the second."""
    if draw(model, first).steady_w < draw(model, second).steady_w:
        return False
    return clock_share(model, first.graphics_mhz) >= clock_share(model, second.graphics_mhz)


def require_supported(
    models: Mapping[str, Model], setting: Setting, limit_at: str = "limits", clock_at: str = "limits"
) -> None:
    """Raises UsageError, with the position and its range, if a GPU does not support the setting.

    `limit_at`, `clock_at`: where the limits were requested, `--limits-w` or FILE:LINE.
    """
    watts, mhz = setting.power_limit_w, setting.graphics_mhz
    for position, model in models.items():
        power, clocks = model.power_w, model.clocks_mhz
        place = f"{model.label} at {position}"
        if watts is not None and not (power.min or watts) <= watts <= (power.max or watts):
            expected = f"watts of one GPU, {_span(power.min, power.max, 'W')}"
            raise UsageError(limit_at, f"{watts} W is outside what {place} takes", expected)
        if mhz is None:
            continue
        if not {"application", "locked_graphics"} & set(model.clock_verbs):
            fix = f"--limits-w {power.min or power.default or 0:g} or more"
            raise UsageError(clock_at, f"the clocks of {place} cannot be set", "a power limit, which it takes", fix)
        if clocks.graphics_max is None or not (clocks.graphics_min or mhz) <= mhz <= clocks.graphics_max:
            expected = f"graphics clocks, {_span(clocks.graphics_min, clocks.graphics_max, 'MHz')}"
            raise UsageError(clock_at, f"{mhz} MHz is outside what {place} takes", expected)


def _span(low: float | None, high: float | None, unit: str) -> str:
    if low is None and high is None:
        return f"in {unit}; the catalogue does not know its range"
    if low is None or high is None:
        return f"from {low:g} {unit}" if low is not None else f"up to {high:g} {unit}"
    return f"{low:g} to {high:g} {unit}"
