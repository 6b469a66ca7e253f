"""What one GPU draws under a power limit and a highest clock, and what that costs in speed.

Factors, each with where it comes from (docs/power.md says it in plain words):

- `CLOCK_EXPONENT` 1.33: power follows the clock to this power. From one measured point: V100 modules that drew 350 W at
  1530 MHz stayed below 200 W at 1005 MHz.
- A power limit bounds the average only, not the instant: the same modules, held to 200 W, still drew more than 300 W
  until their clocks were lowered as well. So a limit lowers `steady_w` and leaves `peak_w`; a clock lowers both.
- `RAMP_FROM` 1/2: a ramp begins at half of the default draw. The same modules went from 150 W (of 300 W) to 350 W in tenths
  of a second.
- `PEAK_FACTOR` 1.2 and `PEAK_FACTOR_GEFORCE` 1.7, where nobody has seen a model's peak. Assumed: the first as V100 (350 of
  300 W) and A100 (475 of 400 W), the second for GeForce cards from Ampere on, as the RTX 3090 (600 of 350 W).
- `RAMP_TO` 1.2: a ramp ends at what lasts tenths of a second, as with V100 and A100; what spikes higher is over in
  milliseconds, and counts as a peak only. Assumed.
- `IDLE_SHARE` 0.15 in P0 and 0.10 in P8, where nobody has read a model's idle draw. Assumed.
- `EFFICIENCY_PERCENT` 90: what a supply gives of what it takes from the wall. Assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rigwright.catalogue import Model
from rigwright.errors import InputError, UsageError
from rigwright.wanted import Limits

CLOCK_EXPONENT = math.log(350 / 200) / math.log(1530 / 1005)
RAMP_FROM = 0.5
RAMP_TO = 1.2
PEAK_FACTOR = 1.2
PEAK_FACTOR_GEFORCE = 1.7
IDLE_SHARE = {"P0": 0.15, "P8": 0.10, "P12": 0.10}
EFFICIENCY_PERCENT = 90


@dataclass(frozen=True)
class Setting:
    """What every GPU is held to; None: its default limit, its highest clocks."""

    power_limit_w: int | None = None
    graphics_mhz: int | None = None

    def __str__(self) -> str:
        """`200 W, 1005 MHz`."""
        limit = f"{self.power_limit_w} W" if self.power_limit_w is not None else ""
        clock = f"{self.graphics_mhz} MHz" if self.graphics_mhz is not None else ""
        return ", ".join(word for word in (limit, clock) if word) or "no limits"


FULL = Setting()


@dataclass(frozen=True)
class Draw:
    """Watts of one GPU: held for minutes, for an instant, the sudden step up to that, and doing nothing.

    `assumed`: which of them nobody has measured.
    """

    steady_w: float
    peak_w: float
    ramp_w: float
    idle_w: float
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """Speed that a setting costs: `exactly` so many percent as measured, `at least`, `at most`, or `unknown`."""

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
    """The part of an inventory's `limits` that bounds power, or None when there is none."""
    if limits is None:
        return None
    clocks, locked = limits.application_clocks, limits.locked_graphics_mhz
    mhz = clocks.graphics_mhz if clocks else locked[1] if locked else None
    found = Setting(limits.power_limit_w, mhz)
    return None if found == FULL else found


def draw(model: Model, setting: Setting = FULL) -> Draw:
    """What one GPU of the model draws. Raises InputError when the catalogue has no default limit for it."""
    power = model.power_w
    if power.default is None:
        raise InputError(
            f"catalogue/gpus/{model.key}.yml", "power_w has no default, so its draw is not known", "default: WATTS"
        )
    limit = power.default if setting.power_limit_w is None else float(setting.power_limit_w)
    share = clock_share(model, setting.graphics_mhz)
    assumed = []
    peak = power.peak
    if peak is None:
        factor = _peak_factor(model)
        peak = power.default * factor
        assumed.append(f"peak of {model.label}: {peak:.0f} W, {factor:g} times its default")
    ramp = min(peak, power.default * RAMP_TO) - power.default * RAMP_FROM
    peak *= max(1.0, limit / power.default)
    idle = model.idle.power_w
    if idle is None:
        idle = power.default * IDLE_SHARE[model.idle.state]
        assumed.append(
            f"idle draw of {model.label}: {idle:.0f} W, {IDLE_SHARE[model.idle.state] * 100:.0f} % of its default"
        )
    return Draw(min(limit, peak * share), peak * share, ramp * share, idle, tuple(assumed))


def _peak_factor(model: Model) -> float:
    newer = model.architecture in ("Ampere", "Ada", "Hopper", "Blackwell")
    return PEAK_FACTOR_GEFORCE if newer and "GeForce" in model.name else PEAK_FACTOR


def clock_share(model: Model, graphics_mhz: int | None) -> float:
    """The part of its power that a GPU draws with graphics clocks of no more than that; 1 without, or where its own highest
    clock is not known."""
    highest = model.clocks_mhz.graphics_max
    if graphics_mhz is None or highest is None or graphics_mhz >= highest:
        return 1.0
    return float((graphics_mhz / highest) ** CLOCK_EXPONENT)


def cost(model: Model, setting: Setting) -> Cost:
    """What a setting costs in speed, from what was measured of the model: as one of its figures, or between them."""
    if clock_share(model, setting.graphics_mhz) == 1 and draw(model, setting).steady_w >= (model.power_w.default or 0):
        return Cost("exactly")
    source = model.sources.get("speed", "")
    least, most = 0.0, None
    for known in model.speed:
        point = Setting(known.power_limit_w, known.graphics_mhz)
        if point == setting:
            return Cost("exactly", known.cost_percent, source)
        if _gentler(model, point, setting):
            least = max(least, known.cost_percent)
        elif _gentler(model, setting, point):
            most = known.cost_percent if most is None else min(most, known.cost_percent)
    if least:
        return Cost("at least", least, source)
    return Cost("unknown") if most is None else Cost("at most", most, source)


def _gentler(model: Model, one: Setting, other: Setting) -> bool:
    """Whether the first setting leaves a GPU at least as much power and as much clock as the second."""
    return draw(model, one).steady_w >= draw(model, other).steady_w and clock_share(
        model, one.graphics_mhz
    ) >= clock_share(model, other.graphics_mhz)


@dataclass(frozen=True)
class Wanted:
    """A setting that somebody asked for, and where: `--limits-w`, or FILE:LINE."""

    setting: Setting
    limit_at: str = "limits"
    clock_at: str = "limits"


def checked(models: Mapping[str, Model], wanted: Wanted) -> Setting:
    """The setting, when every position's model takes it. Raises UsageError that names the position and its range."""
    setting = wanted.setting
    for position, model in models.items():
        power, clocks = model.power_w, model.clocks_mhz
        if setting.power_limit_w is not None and not _within(setting.power_limit_w, power.min, power.max):
            raise UsageError(
                wanted.limit_at,
                f"{setting.power_limit_w} W is outside what {model.label} at {position} takes",
                f"watts of one GPU, {_span(power.min, power.max, 'W')}",
            )
        if setting.graphics_mhz is None:
            continue
        if not {"application", "locked_graphics"} & set(model.clock_verbs):
            raise UsageError(
                wanted.clock_at,
                f"the clocks of {model.label} at {position} cannot be set",
                "a power limit, which it takes",
                f"--limits-w {power.min or power.default or 0:g} or more",
            )
        if clocks.graphics_max is None or not _within(setting.graphics_mhz, clocks.graphics_min, clocks.graphics_max):
            raise UsageError(
                wanted.clock_at,
                f"{setting.graphics_mhz} MHz is outside what {model.label} at {position} takes",
                f"graphics clocks, {_span(clocks.graphics_min, clocks.graphics_max, 'MHz')}",
            )
    return setting


def _within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _span(low: float | None, high: float | None, unit: str) -> str:
    if low is None and high is None:
        return f"in {unit}; the catalogue does not know its range"
    if low is None or high is None:
        return f"from {low:g} {unit}" if low is not None else f"up to {high:g} {unit}"
    return f"{low:g} to {high:g} {unit}"
