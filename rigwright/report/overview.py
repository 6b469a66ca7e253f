"""The report page of a fleet: one self-contained HTML file, made of the JSON document of `fleet.report`."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rigwright.hostreport import BAD
from rigwright.report import attention, glance
from rigwright.report.attention import Ending, Entry, Turn
from rigwright.report.glance import Machine, when
from rigwright.report.page import SIGNS, WORDS, environment, view
from rigwright.report.trend import Trend, spread, total
from rigwright.report.words import SOURCES

FIRST = 12
"""So many entries stand open; the rest is a click away."""

STATES = ("pass", "warn", "fail", "unknown")


@dataclass(frozen=True)
class Tile:
    """A figure of the fleet; `kind` colours it, `href` leads to where it is explained, `bar` is how its parts share it."""

    title: str
    value: str
    unit: str
    detail: str
    kind: str = ""
    href: str = ""
    bar: tuple[tuple[str, int], ...] = ()
    trend: Trend | None = None


def page(document: Mapping[str, Any], reload_s: int = 0) -> str:
    """The page of a document of `fleet.report`; with `reload_s` a browser reads it again after so many seconds."""
    hosts = [view(name, f"host-{number}", said, document) for number, (name, said) in enumerate(document["hosts"].items(), 1)]  # fmt: skip
    ended = datetime.datetime.fromisoformat(document["ended"])
    begin, end = glance.times(hosts, ended)
    machines = together([glance.machine(host, begin, end) for host in hosts])
    entries, turns, endings = attention.entries(hosts), attention.turns(hosts), attention.endings(hosts)
    since = sorted({said for host in hosts if (said := host.said["fleet"]["since"])})
    return environment().get_template("fleet.html.j2").render(
        machines=machines, tiles=tiles(machines, entries, turns, endings, (begin, end)),
        entries=entries, turns=turns, endings=endings, first=FIRST, said=said_of(machines), since=when(since[0]) if since else "",
        ended=when(document["ended"]), past=span(end - begin), run=document["run"], error=document["error"],
        inventory=document["inventory"], playbook=document["playbook"], reload_s=reload_s, shows=glance.SHOWN,
        words=WORDS, signs=SIGNS, sources=SOURCES,
    )  # fmt: skip


def span(seconds: float) -> str:
    """How long ago a plot begins: 40 minutes, 5 hours, 7 days."""
    for unit, length in (("day", 86400), ("hour", 3600)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}s"
    return f"{max(1, round(seconds / 60))} min"


def together(machines: Sequence[Machine]) -> list[Machine]:
    """The machines of a group beside each other, else in the inventory's order; where all are of one group it is not named."""
    groups = list(dict.fromkeys(one.group for one in machines))
    if len(groups) == 1:
        return [replace(one, group="") for one in machines]
    return sorted(machines, key=lambda one: groups.index(one.group))


def said_of(machines: Sequence[Machine]) -> str:
    """`6 machines: 4 as wanted, 1 drifting, 1 unreachable`."""
    count = Counter((STATES.index(one.verdict), one.label) for one in machines)
    words = ", ".join(f"{number} {label}" for (_, label), number in sorted(count.items()))
    return f"{len(machines)} machine{'s' if len(machines) != 1 else ''}: {words}" if machines else "no machine"


def tiles(
    machines: Sequence[Machine],
    entries: Sequence[Entry],
    turns: Sequence[Turn],
    endings: Sequence[Ending],
    times: tuple[float, float],
) -> list[Tile]:
    """The fleet's figures, what is wrong first; those that no GPU tells are left out."""
    states = Counter(one.verdict for one in machines)
    bar = tuple((kind, states[kind]) for kind in STATES if states[kind])
    wrong = Counter(one.verdict for one in entries)
    words = {"fail": "failed", "unknown": "unknown", "warn": "warning" if wrong["warn"] == 1 else "warnings"}
    told = ", ".join(f"{wrong[kind]} {word}" for kind, word in words.items() if wrong[kind]) or "nothing"
    ended = Counter(one.verdict for one in endings)
    over = ", ".join(f"{ended[kind]} {word}" for kind, word in (("fail", "ended"), ("warn", "soon")) if ended[kind])
    found = [
        Tile("Machines", str(states["pass"]), f"of {len(machines)}", "as wanted", _worst(states), "#machines", bar),
        Tile("Attention", str(len(entries)), "", told, _worst(wrong), "#attention"),
        Tile("Changes", str(len(turns)), "", "since the last report", "", "#changes"),
        Tile("End of life", str(ended["fail"] + ended["warn"]), "", over or "nothing within half a year",
             _worst(ended), "#endings"),
    ]  # fmt: skip
    return [*found, *_of_gpus(machines, times)]


def _worst(count: Mapping[str, int]) -> str:
    return next((kind for kind in BAD if count[kind]), "")


def _of_gpus(machines: Sequence[Machine], times: tuple[float, float]) -> list[Tile]:
    gpus = [(one, gpu) for one in machines for gpu in one.gpus]
    if not gpus:
        return []
    answer = sum(bool(gpu.said["answers"]) for _, gpu in gpus)
    lost = len(gpus) - answer
    found = [Tile("GPUs", str(answer), f"of {len(gpus)}", f"{lost} do not answer" if lost else "all answer", "fail" if lost else "")]  # fmt: skip
    temperatures, powers = glance.series([one.host for one in machines])
    hot = max((pair for pair in gpus if pair[1].said["temperature_c"] is not None), key=lambda pair: pair[1].said["temperature_c"], default=None)  # fmt: skip
    if hot:
        where = f"{hot[0].host.name} {hot[1].title}"
        found.append(Tile("Hottest GPU", f"{hot[1].said['temperature_c']}", "°C", where, "", f"#{hot[0].host.anchor}",
                          trend=spread(temperatures, *times)))  # fmt: skip
    draw = [gpu.said["power_w"] for _, gpu in gpus if gpu.said["power_w"] is not None]
    if draw:
        limit = sum(gpu.said["power_limit_w"] or 0.0 for _, gpu in gpus)
        found.append(Tile("GPUs draw", *_watts(sum(draw)), f"of {' '.join(_watts(limit))}", trend=total(powers, *times, limit)))  # fmt: skip
    busy = [gpu.said["utilization_percent"] for _, gpu in gpus if gpu.said["utilization_percent"] is not None]
    if busy:
        idle = sum(one < glance.IDLE_PERCENT for one in busy)
        found.append(Tile("GPUs at work", f"{sum(busy) / len(busy):.0f}", "%", f"{idle} of {len(busy)} idle"))
    memory = [(gpu.said["memory_used_mib"], gpu.said["memory_mib"]) for _, gpu in gpus if gpu.said["memory_used_mib"] is not None and gpu.said["memory_mib"]]  # fmt: skip
    if memory:
        used, there = (sum(one) / 1024 for one in zip(*memory, strict=True))
        found.append(Tile("GPU memory", *_gib(used), f"of {' '.join(_gib(there))} taken"))
    return found


def _watts(value: float) -> tuple[str, str]:
    return (f"{value / 1000:.1f}", "kW") if value >= 1000 else (f"{value:.0f}", "W")


def _gib(value: float) -> tuple[str, str]:
    return (f"{value / 1024:.1f}", "TiB") if value >= 1024 else (f"{value:.0f}", "GiB")
