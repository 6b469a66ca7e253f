"""The fleet page: one self-contained HTML file, made from the JSON document of `fleet.report`."""

from __future__ import annotations

import datetime
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rigwright.core.host_ranges import folded
from rigwright.core.numbers import count as plural
from rigwright.engine.machine import MeasuredGpu
from rigwright.engine.report import BAD
from rigwright.features.fleet_report import (
    machine_list as fleet_list,
    machine_tiles as fleet_tiles,
    problems as fleet_attention,
)
from rigwright.features.fleet_report.machine_tiles import Machine
from rigwright.features.fleet_report.plots import Trend, spread, total
from rigwright.features.fleet_report.problems import Changed, Ending, Problem
from rigwright.features.fleet_report.speed_table import day
from rigwright.features.stress import speed_rank
from rigwright.features.stress.speed_rank import Entry, RankedMachine
from rigwright.report.html.host_page import HostView, environment, view
from rigwright.report.labels import SIGNS, SOURCES, WORDS, count_bad, local_time

FIRST = 12
"""The number of problems that are shown; the rest is behind a click."""

CARDS = 48
"""The most machines whose cards are in the page as they are; of more there is a list, whose cards are unpacked when
they are opened."""

SLOWEST = 60
"""The number of entries of slow GPUs that are listed."""

LONG = 6
"""With more problems than this, the changes are beside them instead of below them."""

LABELS = (
    "as expected", "unreachable", "with a lost GPU", "in error", "failing", "drifting", "not proved",
    "with warnings", "never provisioned",
)  # fmt: skip
"""The states of machines in the order of the summary."""
STATES = ("pass", "warn", "fail", "unknown")


class Tile(Struct, frozen=True):
    """A figure of the fleet. `kind`: its CSS class; `href`: the section that explains it; `bar`: CSS classes and widths
    of its parts."""

    title: str
    value: str
    unit: str
    detail: str
    kind: str = ""
    href: str = ""
    bar: tuple[tuple[str, int], ...] = ()
    trend: Trend | None = None


def page(document: Mapping[str, Any], reload_s: int = 0) -> str:
    """The page of a document of `fleet.report`. With `reload_s` a browser loads it again after that many seconds."""
    named = enumerate(document["hosts"].items(), 1)
    hosts = [view(name, f"host-{number}", data, document, brief=True) for number, (name, data) in named]
    ended = datetime.datetime.fromisoformat(document["ended"])
    begin, end = fleet_tiles.times(hosts, ended)
    machines = by_group([fleet_tiles.machine(host, begin, end) for host in hosts])
    problems, changes = fleet_attention.problems(hosts), fleet_attention.changes(hosts)
    endings = fleet_attention.endings(hosts)
    since = [datetime.datetime.fromisoformat(time) for host in hosts if (time := host.data["fleet"]["since"])]
    found = speeds(hosts)
    shared: dict[str, Any] = {
        "words": WORDS, "signs": SIGNS, "sources": SOURCES, "shows": fleet_tiles.SHOWN, "past": span(end - begin),
        "list": None,
    }  # fmt: skip
    if len(machines) > CARDS:
        card = environment().get_template("fleet_machine.html.j2")
        rows = fleet_list.sorted_rows(machines, problems)
        shared["list"] = fleet_list.machine_list(
            rows, problems, changes, endings, lambda machine: card.render(shared, machine=machine, list=True)
        )
    return environment().get_template("fleet.html.j2").render(
        shared,
        machines=[machine for machine in machines if machine.label != fleet_attention.NEVER],
        never=[machine for machine in machines if machine.label == fleet_attention.NEVER],
        number=len(machines), tiles=tiles(machines, problems, changes, endings, (begin, end)),
        problems=problems, accepted=fleet_attention.accepted(hosts), changes=changes, endings=endings,
        first=FIRST, most=SLOWEST, is_long=len(problems) > LONG, summary=summary(machines),
        level=_worst(Counter(machine.verdict for machine in machines)) or "pass",
        since=local_time(min(since)) if since else "",
        ended=local_time(ended), run=document["run"], error=document["error"],
        inventory=document["inventory"], playbook=document["playbook"], reload_s=reload_s,
        speeds=found, day=day,
        measures=f"invoke stress --host {shlex.quote(folded(found.unmeasured).replace(', ', ','))}",
    )  # fmt: skip


class Speeds(Struct, frozen=True):
    """The speed under full load: machines and GPUs, the slowest first; models without a figure; machines of which no
    speed is known."""

    machines: tuple[RankedMachine, ...]
    gpus: tuple[Entry, ...]
    without_figure: tuple[str, ...]
    unmeasured: tuple[str, ...]


def speeds(hosts: Sequence[HostView]) -> Speeds:
    """What the newest stresses measured of the GPUs of these machines."""
    measured = {host.name: tuple(MeasuredGpu(**row) for row in host.data["measured"] or ()) for host in hosts}
    ranked = speed_rank.gpus(measured)
    none = [host.name for host in hosts if not measured[host.name] and any(card.answers for card in host.cards)]
    unknown = speed_rank.without_figure(measured)
    return Speeds(tuple(speed_rank.machines(ranked)), tuple(speed_rank.entries(ranked)), tuple(unknown), tuple(none))


def span(seconds: float) -> str:
    """The length of a plot in words: `40 min`, `5 hours`, `7 days`."""
    for unit, length in (("day", 86400), ("hour", 3600)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}s"
    return f"{max(1, round(seconds / 60))} min"


def by_group(machines: Sequence[Machine]) -> list[Machine]:
    """The machines sorted by group, else in the order of the inventory. A group that all share is not named."""
    groups = list(dict.fromkeys(machine.group for machine in machines))
    if len(groups) == 1:
        return [replace(machine, group="") for machine in machines]
    return sorted(machines, key=lambda machine: groups.index(machine.group))


def summary(machines: Sequence[Machine]) -> str:
    """`6 machines: 4 as expected, 1 unreachable, 1 drifting`."""
    count = Counter(machine.label for machine in machines)
    labels = [*(label for label in LABELS if label in count), *(label for label in count if label not in LABELS)]
    words = ", ".join(f"{count[label]} {label}" for label in labels)
    return f"{plural(len(machines), 'machine')}: {words}" if machines else "no machine"


def tiles(
    machines: Sequence[Machine],
    problems: Sequence[Problem],
    changes: Sequence[Changed],
    endings: Sequence[Ending],
    times: tuple[float, float],
) -> list[Tile]:
    """The figures of the fleet; those that no GPU reports are left out."""
    states = Counter(machine.verdict for machine in machines)
    bar = tuple((kind, states[kind]) for kind in STATES if states[kind])
    bad = Counter(problem.verdict for problem in problems)
    ended = Counter(ending.verdict for ending in endings)
    near = ", ".join(f"{ended[kind]} {word}" for kind, word in (("fail", "ended"), ("warn", "soon")) if ended[kind])
    figures = [
        Tile("Machines", str(states["pass"]), f"of {len(machines)}", "as expected", _worst(states), "#machines", bar),
        Tile("Problems", str(len(problems)), "", count_bad(bad) or "none", _worst(bad), "#attention"),
        Tile("Changes", str(len(changes)), "", "since the last report", "", "#changes"),
        Tile("End of life", str(ended["fail"] + ended["warn"]), "", near or "nothing within half a year",
             _worst(ended), "#endings"),
    ]  # fmt: skip
    return [*figures, *_gpu_tiles(machines, times)]


def _worst(count: Mapping[str, int]) -> str:
    return next((kind for kind in BAD if count[kind]), "")


def _gpu_tiles(machines: Sequence[Machine], times: tuple[float, float]) -> list[Tile]:
    gpus = [(machine, gpu) for machine in machines for gpu in machine.gpus]
    if not gpus:
        return []
    answering = sum(bool(gpu.data["answers"]) for _, gpu in gpus)
    lost = len(gpus) - answering
    silent = f"{lost} {'does' if lost == 1 else 'do'} not answer" if lost else "all answer"
    figures = [Tile("GPUs", str(answering), f"of {len(gpus)}", silent, "fail" if lost else "")]
    temperatures, powers = fleet_tiles.series([machine.host for machine in machines])
    known = [(machine.host, gpu) for machine, gpu in gpus if gpu.data["temperature_c"] is not None]
    if known:
        host, hottest = max(known, key=lambda pair: pair[1].data["temperature_c"])
        temperature, where = f"{hottest.data['temperature_c']}", f"{host.name} {hottest.title}"
        trend = spread(temperatures, *times)
        figures.append(Tile("Hottest GPU", temperature, "°C", where, "", f"#{host.anchor}", trend=trend))
    draw = [gpu.data["power_w"] for _, gpu in gpus if gpu.data["power_w"] is not None]
    if draw:
        limit = sum(gpu.data["power_limit_w"] or 0.0 for _, gpu in gpus)
        trend = total(powers, *times, limit)
        figures.append(Tile("GPU power", *_watts(sum(draw)), f"of {' '.join(_watts(limit))}", trend=trend))
    busy = [gpu.data["utilization_percent"] for _, gpu in gpus if gpu.data["utilization_percent"] is not None]
    if busy:
        idle = sum(percent < fleet_tiles.IDLE_PERCENT for percent in busy)
        figures.append(Tile("GPU load", f"{sum(busy) / len(busy):.0f}", "%", f"{idle} of {len(busy)} idle"))
    sizes = [(gpu.data["memory_used_mib"], gpu.data["memory_mib"]) for _, gpu in gpus]
    if memory := [(used, size) for used, size in sizes if used is not None and size]:
        used, total_gib = (sum(values) / 1024 for values in zip(*memory, strict=True))
        figures.append(Tile("GPU memory", *_gib(used), f"of {' '.join(_gib(total_gib))} used"))
    return figures


def _watts(value: float) -> tuple[str, str]:
    return (f"{value / 1000:.1f}", "kW") if value >= 1000 else (f"{value:.0f}", "W")


def _gib(value: float) -> tuple[str, str]:
    return (f"{value / 1024:.1f}", "TiB") if value >= 1024 else (f"{value:.0f}", "GiB")
