"""A power plan as text with its picture, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.choices import counted_of
from rigwright.power import Budget, Circuit, Load, Plan, Setting

BAR = 40
"""Columns of the picture; a line of it has at most 80."""

_STYLE = {"fits": "green", "tight": "yellow", "does not fit": "bold red"}
_MARKS = {
    "supply": ("█", "="),
    "base": ("▒", "o"),
    "GPUs steady": ("█", "#"),
    "GPUs peak": ("░", "+"),
    "ramp": ("▲", "^"),
}
_COLOUR = {"supply": "cyan", "base": "blue", "GPUs steady": "green", "GPUs peak": "yellow", "ramp": "magenta"}


def show(console: Console, plan: Plan, file: str = "") -> None:
    """The plan: for each setting and supply a picture and what follows from it; then what would fit, what it costs, and
    what to type into `file`, the host's variables."""
    width = min(console.width, 100) if console.is_terminal else 80
    fancy = console.is_terminal and console.encoding.startswith("utf")

    def line(text: str = "", style: str = "", indent: str = "  ") -> None:
        for row in textwrap.wrap(text, width - 1, subsequent_indent=indent + "  ", break_on_hyphens=False) or [""]:
            console.print(Text(row, style=style), highlight=False, soft_wrap=True)

    rig = plan.rig
    line(f"{rig.key}: {rig.title}", "bold")
    line(f"{counted_of(rig)}; {' and '.join(load.circuit.name for load in plan.full.loads)}")
    for made in (plan.full, plan.limited):
        if made is None:
            continue
        line()
        line(f"{_title(made)}: {made.verdict}", _STYLE[made.verdict])
        for number, load in enumerate(made.loads, 1):
            if len(made.loads) > 1:
                line(f"  supply {number}: {_feeds(load.circuit)}: {load.verdict}", _STYLE[load.verdict])
            for label, bar, tail in picture(load, fancy):
                row = Text(f"  {label:<12} ")
                row.append(f"{bar:<{BAR}}", style=_COLOUR[label])
                row.append(f" {tail}")
                row.rstrip()
                console.print(row, highlight=False, soft_wrap=True)
            for text in told(load):
                line(f"  {text}")
            for reason in load.reasons:
                line(f"  {reason.verdict}: {reason.text}", _STYLE[reason.verdict])
    for head, texts in (
        ("What would fit", [*_options(plan), *plan.larger]),
        ("What it costs", list(costs(plan))),
        ("Assumed, not measured", list(plan.assumed)),
    ):
        if texts:
            line()
            line(head, "bold")
            for text in texts:
                line(f"  {text}")
    typed = to_type(rig, plan.best)
    if typed:
        line()
        line(f"To type, into {file or 'inventory/host_vars/NAME.yml'}" if typed[0] == "limits:" else "To type", "bold")
        for text in typed:
            console.print(Text(f"    {text}"), highlight=False, soft_wrap=True)


def _title(made: Budget) -> str:
    return "Without limits" if str(made.setting) == "no limits" else f"With {made.setting} for each GPU"


def _feeds(circuit: Circuit) -> str:
    named = [*circuit.positions, *(["the rest of the machine"] if circuit.base else [])]
    return f"{circuit.name}, feeds {', '.join(named)}"


def picture(load: Load, fancy: bool = False) -> Iterator[tuple[str, str, str]]:
    """Rows of a label, a bar and a figure: the supply, and under it what hangs on it, each bar where the last one ends."""
    scale = BAR / max(load.circuit.rating_w, load.peak_w, 1.0)

    def bar(label: str, start_w: float, watts: float) -> str:
        begin, end = round(start_w * scale), round((start_w + watts) * scale)
        return " " * begin + _MARKS[label][0 if fancy else 1] * max(end - begin, 1 if watts > 0 else 0)

    count = len(load.circuit.positions)
    each = f"{count} x {load.gpus_steady_w / count:.0f} W" if count else ""
    added = load.gpus_peak_w - load.gpus_steady_w
    yield "supply", bar("supply", 0, load.circuit.rating_w), f"{load.circuit.rating_w:6.0f} W"
    if load.base_w:
        yield "base", bar("base", 0, load.base_w), f"{load.base_w:6.0f} W"
    if count:
        yield "GPUs steady", bar("GPUs steady", load.base_w, load.gpus_steady_w), f"{load.gpus_steady_w:6.0f} W {each}"
        if added >= 0.5:
            to = f"to {load.gpus_peak_w / count:.0f} W each"
            yield "GPUs peak", bar("GPUs peak", load.steady_w, added), f"{'+' + format(added, '.0f'):>6} W {to}"
        up = f"{load.ramp_percent:.0f} % at once"
        yield "ramp", bar("ramp", 0, load.ramp_w), f"{'+' + format(load.ramp_w, '.0f'):>6} W {up}"


def told(load: Load) -> Iterator[str]:
    """What the picture shows, in figures: margins, and the amperes of connectors."""
    percent = 100 * load.steady_w / load.circuit.rating_w
    yield f"steady {load.steady_w:.0f} W, {percent:.0f} %: {_margin(load.margin_w, 'W')}"
    yield f"peak {load.peak_w:.0f} W, all at once: {_margin(load.peak_margin_w, 'W')}"
    for one in load.joints:
        yield (
            f"{one.count} x {one.name} of {one.rated_a:g} A, each {one.steady_a:.1f} A, "
            f"{one.peak_a:.1f} A at the peak: {_margin(one.margin_a, 'A', 1)}"
        )


def _margin(value: float, unit: str, digits: int = 0) -> str:
    return f"{value:.{digits}f} {unit} to spare" if value >= 0 else f"{-value:.{digits}f} {unit} too few"


def _options(plan: Plan) -> Iterator[str]:
    for one in plan.options:
        yield f"{one.budget.setting}: {one.verdict}, costs {one.cost}"


def costs(plan: Plan) -> Iterator[str]:
    """Speed, and with a price what a day costs."""
    if plan.limited:
        source = f" ({plan.cost.source})" if plan.cost.source else ""
        yield f"speed: {plan.limited.setting} costs {plan.cost}{source}"
    for label, watts in _days(plan):
        day = plan.cost_per_day(watts)
        if day is not None:
            yield f"a day {label}: {watts:.0f} W, {day:.2f} at {plan.price_per_kwh:.2f} per kWh"


def _days(plan: Plan) -> Iterator[tuple[str, float]]:
    yield "at full draw without limits", plan.full.steady_w
    if plan.limited:
        yield f"at full draw with {plan.limited.setting}", plan.limited.steady_w
    yield "idle, with limits or without", plan.full.idle_w


def to_type(rig: Rig, setting: Setting) -> list[str]:
    """The inventory's lines for a setting."""
    lines = []
    if setting.power_limit_w is not None:
        lines.append(f"  power_limit_w: {setting.power_limit_w}")
    models = [catalogue.model(key) for key in dict.fromkeys(rig.models)]
    mhz = setting.graphics_mhz
    if mhz is not None:
        memory = models[0].clocks_mhz.memory
        old = int(rig.driver) <= catalogue.application_clocks_until()
        if old and all("application" in one.clock_verbs and one.clocks_mhz.memory == memory for one in models):
            lines.append(f"  application_clocks: {{memory_mhz: {memory[0]}, graphics_mhz: {mhz}}}")
        else:
            lowest = max(one.clocks_mhz.graphics_min or 0 for one in models)
            lines.append(f"  locked_graphics_mhz: [{lowest:.0f}, {mhz}]")
    return ["limits:", "  persistence: true", *lines] if lines else []


def document(plan: Plan) -> dict[str, Any]:
    """The plan for programs; every key says its unit."""
    return {
        "rig": plan.rig.key,
        "verdict": plan.chosen.verdict,
        "without_limits": _budget(plan, plan.full),
        "with_limits": _budget(plan, plan.limited) if plan.limited else None,
        "speed_cost": {"kind": plan.cost.kind, "percent": plan.cost.percent, "source": plan.cost.source},
        "options": [
            {**_setting(one.budget.setting), "verdict": one.verdict, "speed_cost": str(one.cost)}
            for one in plan.options
        ],
        "larger_supplies": list(plan.larger),
        "assumed": list(plan.assumed),
        "type": to_type(plan.rig, plan.best),
    }


def _setting(one: Setting) -> dict[str, int | None]:
    return {"power_limit_w": one.power_limit_w, "graphics_mhz": one.graphics_mhz}


def _budget(plan: Plan, made: Budget) -> dict[str, Any]:
    full, idle = plan.cost_per_day(made.steady_w), plan.cost_per_day(made.idle_w)
    return {
        **_setting(made.setting),
        "verdict": made.verdict,
        "steady_w": round(made.steady_w, 1),
        "peak_w": round(made.peak_w, 1),
        "idle_w": round(made.idle_w, 1),
        "cost_per_day_full": None if full is None else round(full, 2),
        "cost_per_day_idle": None if idle is None else round(idle, 2),
        "supplies": [_load(load) for load in made.loads],
    }


def _load(load: Load) -> dict[str, Any]:
    return {
        "supply": load.circuit.name,
        "feeds": [*load.circuit.positions, *(["base"] if load.circuit.base else [])],
        "rating_w": load.circuit.rating_w,
        "steady_w": round(load.steady_w, 1),
        "margin_w": round(load.margin_w, 1),
        "peak_w": round(load.peak_w, 1),
        "peak_margin_w": round(load.peak_margin_w, 1),
        "ramp_w": round(load.ramp_w, 1),
        "ramp_percent": round(load.ramp_percent, 1),
        "verdict": load.verdict,
        "reasons": [{"verdict": one.verdict, "text": one.text} for one in load.reasons],
        "connectors": [
            {
                "name": one.name,
                "count": one.count,
                "rated_a": one.rated_a,
                "steady_a": round(one.steady_a, 1),
                "peak_a": round(one.peak_a, 1),
                "margin_a": round(one.margin_a, 1),
            }
            for one in load.joints
        ],
    }
