"""`invoke power.plan`: a power plan as text with a bar chart, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.catalogue.summary import counted_of
from rigwright.features.power.budget import Budget, Joint, Load
from rigwright.features.power.draw import Setting
from rigwright.features.power.plan import Plan

BAR = 40
"""Columns of a bar."""
_WIDE = 80
"""Columns of a line with a label, a bar and its numbers. On a narrower terminal the bar has its own line."""
_STYLE = {"fits": "green", "tight": "yellow", "does not fit": "bold red"}
_MARKS = {
    "supply": ("█", "="),
    "base": ("▒", "o"),
    "GPUs steady": ("█", "#"),
    "GPUs peak": ("░", "+"),
    "ramp": ("▲", "^"),
}
_COLOUR = {"supply": "cyan", "base": "blue", "GPUs steady": "green", "GPUs peak": "yellow", "ramp": "magenta"}

UNEQUAL = (
    "Supplies in parallel do not share a step of the load equally, so one of them does not count. GPUs of servbadge"
    " fell off the bus with two supplies, also with limited clocks and power; a third supply solved it."
)


def show(console: Console, plan: Plan, file: str = "") -> None:
    """Writes the plan: a bar chart and a verdict for each setting and supply, then the limits and supplies that would
    fit, the costs, and the lines to type into `file`, which has the host's variables."""
    width = min(console.width, 100) if console.is_terminal else 80
    fancy = console.is_terminal and console.encoding.startswith("utf")

    def line(text: str = "", style: str = "") -> None:
        for row in textwrap.wrap(text, width - 1, subsequent_indent="    ", break_on_hyphens=False) or [""]:
            console.print(Text(row, style=style), highlight=False, soft_wrap=True)

    rig = plan.rig
    line(f"{rig.key}: {rig.title}", "bold")
    line(f"{counted_of(rig)}; {' and '.join(load.circuit.name for load in plan.full.loads)}")
    for budget in (plan.full, plan.limited) if plan.limited else (plan.full,):
        line()
        limits = "Without limits" if str(budget.setting) == "no limits" else f"With {budget.setting} for each GPU"
        line(f"{limits}: {budget.verdict}", _STYLE[budget.verdict])
        for number, load in enumerate(budget.loads, 1):
            if len(budget.loads) > 1:
                fed = [*load.circuit.positions, *(["the rest of the machine"] if load.circuit.base else [])]
                about = f"{load.circuit.name}, feeds {', '.join(fed)}"
                line(f"  supply {number}: {about}: {load.verdict}", _STYLE[load.verdict])
            for label, bar, tail in picture(load, fancy, min(BAR, width - 4)):
                drawn = Text(f"{bar:<{BAR}}", style=_COLOUR[label])
                narrow = [Text(f"  {label:<12} {tail}"), Text("  ") + drawn]
                for row in narrow if width < _WIDE else [Text(f"  {label:<12} ") + drawn + Text(f" {tail}")]:
                    row.rstrip()
                    console.print(row, highlight=False, soft_wrap=True)
            for text in margins(load):
                line(f"  {text}")
            for reason in load.reasons:
                line(f"  {reason.verdict}: {reason.text}", _STYLE[reason.verdict])
    if any(load.circuit.is_parallel and load.verdict != "fits" for load in plan.chosen.loads):
        line()
        line(UNEQUAL)
    if plan.mains:
        line()
        verdict = plan.mains.verdict
        line(f"Mains circuit of {', '.join(plan.mains.circuit.hosts)}: {verdict}", _STYLE[verdict])
        for text in plan.mains.reasons:
            line(f"  {text}")
    options = [f"{option.budget.setting}: {option.budget.verdict}, costs {option.cost}" for option in plan.options]
    fitting = [*options, *plan.larger, *(plan.mains.options if plan.mains else ())]
    lists = {"What would fit": fitting, "What it costs": [*costs(plan)], "Assumed, not measured": plan.assumed}
    for head, texts in lists.items():
        if texts:
            line()
            line(head, "bold")
            for text in texts:
                line(f"  {text}")
    typed = to_type(rig, plan.best)
    if typed:
        line()
        line(f"To type, into {file or 'inventory/host_vars/NAME.yml'}", "bold")
        for text in typed:
            console.print(Text(f"    {text}"), highlight=False, soft_wrap=True)


def picture(load: Load, fancy: bool = False, columns: int = BAR) -> Iterator[tuple[str, str, str]]:
    """Rows of a label, a bar of at most `columns`, and a number, for the supply and its loads; a bar begins where the
    last bar ends."""
    scale = columns / max(load.circuit.rating_w, load.peak_w, 1.0)

    def bar(label: str, start_w: float, watts: float) -> str:
        begin, end = round(start_w * scale), round((start_w + watts) * scale)
        return " " * begin + _MARKS[label][0 if fancy else 1] * max(end - begin, 1 if watts > 0 else 0)

    count = len(load.circuit.positions)
    each = f"{count} x {load.gpus_steady_w / count:.0f} W" if count else ""
    added = load.gpus_peak_w - load.gpus_steady_w
    less_w = load.circuit.rating_w - load.circuit.counted_w
    less = f" less {less_w:.0f} W" if less_w else ""
    yield "supply", bar("supply", 0, load.circuit.rating_w), f"{load.circuit.rating_w:6.0f} W{less}"
    if load.base_w:
        yield "base", bar("base", 0, load.base_w), f"{load.base_w:6.0f} W"
    if count:
        yield "GPUs steady", bar("GPUs steady", load.base_w, load.gpus_steady_w), f"{load.gpus_steady_w:6.0f} W {each}"
        if added >= 0.5:
            to = f"to {load.gpus_peak_w / count:.0f} W each"
            yield "GPUs peak", bar("GPUs peak", load.steady_w, added), f"{'+' + format(added, '.0f'):>6} W {to}"
        up = f"{load.ramp_percent:.0f} % at once"
        yield "ramp", bar("ramp", 0, load.ramp_w), f"{'+' + format(load.ramp_w, '.0f'):>6} W {up}"


def margins(load: Load) -> Iterator[str]:
    """The margins of a supply, in watts and in amperes of its connectors."""

    def margin(value: float, unit: str, digits: int = 0) -> str:
        return f"{abs(value):.{digits}f} {unit} {'to spare' if value >= 0 else 'too few'}"

    counted_w = load.circuit.counted_w
    percent = f"{100 * load.steady_w / counted_w:.0f} % of {counted_w:.0f} W"
    yield f"steady {load.steady_w:.0f} W, {percent}: {margin(load.margin_w, 'W')}"
    yield f"peak {load.peak_w:.0f} W, all at once: {margin(load.peak_margin_w, 'W')}"
    for joint in load.joints:
        each = f"each {joint.steady_a:.1f} A, {joint.peak_a:.1f} A at the peak"
        yield f"{joint.count} x {joint.name} of {joint.rated_a:g} A, {each}: {margin(joint.margin_a, 'A', 1)}"


def costs(plan: Plan) -> Iterator[str]:
    """The cost in speed, and with a price the cost of a day."""
    if plan.limited:
        source = f" ({plan.cost.source})" if plan.cost.source else ""
        yield f"speed: {plan.limited.setting} costs {plan.cost}{source}"
    draws = {"at full draw without limits": plan.full.steady_w}
    if plan.limited:
        draws[f"at full draw with {plan.limited.setting}"] = plan.limited.steady_w
    draws["idle, with limits or without"] = plan.full.idle_w
    for label, watts in draws.items():
        if (day := plan.cost_per_day(watts)) is not None:
            yield f"a day {label}: {watts:.0f} W, {day:.2f} at {plan.price_per_kwh:.2f} per kWh"


def to_type(rig: Rig, setting: Setting) -> list[str]:
    """The lines of the inventory for a setting."""
    lines = [] if setting.power_limit_w is None else [f"  power_limit_w: {setting.power_limit_w}"]
    models = [catalogue.model(key) for key in dict.fromkeys(rig.models)]
    mhz = setting.graphics_mhz
    if mhz is not None:
        memory = models[0].clocks_mhz.memory
        old = int(rig.driver) <= catalogue.driver_table().application_clocks_until
        if old and all("application" in each.clock_verbs and each.clocks_mhz.memory == memory for each in models):
            lines.append(f"  application_clocks: {{memory_mhz: {memory[0]}, graphics_mhz: {mhz}}}")
        else:
            lowest = max(model.clocks_mhz.graphics_min or 0 for model in models)
            lines.append(f"  locked_graphics_mhz: [{lowest:.0f}, {mhz}]")
    return ["limits:", "  persistence: true", *lines] if lines else []


def document(plan: Plan) -> dict[str, Any]:
    """The key `power` of the JSON document."""
    return {
        "rig": plan.rig.key,
        "verdict": plan.verdict,
        "without_limits": _budget(plan, plan.full),
        "with_limits": _budget(plan, plan.limited) if plan.limited else None,
        "speed_cost": {"kind": plan.cost.kind, "percent": plan.cost.percent, "source": plan.cost.source},
        "options": [
            {**_setting(option.budget.setting), "verdict": option.budget.verdict, "speed_cost": str(option.cost)}
            for option in plan.options
        ],
        "larger_supplies": list(plan.larger),
        "circuit": plan.mains and plan.mains.document,
        "assumed": list(plan.assumed),
        "type": to_type(plan.rig, plan.best),
    }


def _setting(setting: Setting) -> dict[str, int | None]:
    return {"power_limit_w": setting.power_limit_w, "graphics_mhz": setting.graphics_mhz}


def _budget(plan: Plan, budget: Budget) -> dict[str, Any]:
    costs = {"full": plan.cost_per_day(budget.steady_w), "idle": plan.cost_per_day(budget.idle_w)}
    supplies = [
        {
            "supply": load.circuit.name,
            "feeds": [*load.circuit.positions, *(["base"] if load.circuit.base else [])],
            "rating_w": load.circuit.rating_w,
            **_rounded(load, "steady_w", "margin_w", "peak_w", "peak_margin_w", "ramp_w", "ramp_percent"),
            "verdict": load.verdict,
            "reasons": [{"verdict": reason.verdict, "text": reason.text} for reason in load.reasons],
            "connectors": [
                {"name": joint.name, "count": joint.count, "rated_a": joint.rated_a}
                | _rounded(joint, "steady_a", "peak_a", "margin_a")
                for joint in load.joints
            ],
        }
        for load in budget.loads
    ]
    return {
        **_setting(budget.setting),
        "verdict": budget.verdict,
        **_rounded(budget, "steady_w", "peak_w", "idle_w"),
        **{f"cost_per_day_{draw}": None if cost is None else round(cost, 2) for draw, cost in costs.items()},
        "supplies": supplies,
    }


def _rounded(value: Budget | Load | Joint, *names: str) -> dict[str, float]:
    return {name: round(getattr(value, name), 1) for name in names}
