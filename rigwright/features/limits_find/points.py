"""The points of `invoke limits.find`: the limits to try, the power plan's verdicts on them, and the three best.

A point has one limit for each group of equal GPUs. All groups go from their lowest to their highest limit in the same
shares. docs/guide/limits_find.md explains the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from rigwright.catalogue import Rig
from rigwright.core.errors import RigwrightError
from rigwright.core.host_result import HostResult
from rigwright.facts.nccl.load import Sensors
from rigwright.features.power.budget import VERDICTS, Circuit, budget, circuits
from rigwright.features.power.draw import Setting
from rigwright.features.power.plan import missing

Kind = Literal["power_limit_w", "application_clocks", "locked_graphics_mhz"]
"""The limit that is swept, by its key in the inventory."""

STEP_W = 5
"""Power limits are multiples of this, except the lowest and the highest."""
SAME_PERCENT = 1.0
"""Speeds that differ by up to this count as equal, and the lower power decides (assumed: the noise of one point)."""
QUIET_PERCENT = 80
"""The share of the fastest point's speed that the quiet point has to reach. A choice, not a measurement."""
CLOCKS_REASON = 0x2
"""NVML's reason for a lower clock: a limit of the clocks (nvml.h)."""
SHARES = 200
"""The number of equal steps of the range in which the highest limit is searched that the supplies carry."""

NAMES = {
    "fastest": "the fastest that the supplies carry",
    "per-watt": "the most products per watt",
    "quiet": f"the fewest watts with at least {QUIET_PERCENT} % of the fastest",
}
"""The names of the three best points, with their rules."""


class Group(Struct, frozen=True):
    """GPUs of one model, which get the same limit.

    `key`: the model's key, or the UUID of a GPU of an unknown model. `low` and `high`: the range of the sweep, W or
    MHz. `listed`: the clocks that all GPUs support, lowest first; () for watts. `memory_mhz`: of application clocks.
    `in_force`: the limit of the other kind, which stays in force; None without one.
    """

    key: str
    name: str
    uuids: tuple[str, ...]
    kind: Kind
    low: int
    high: int
    listed: tuple[int, ...] = ()
    memory_mhz: int = 0
    in_force: int | None = None

    def at(self, share: float) -> int:
        """The limit at a share of the range from 0 to 1."""
        value = self.low + share * (self.high - self.low)
        if self.listed:
            return min(self.listed, key=lambda mhz: abs(mhz - value))
        return min(max(round(value / STEP_W) * STEP_W, self.low), self.high) if 0 < share < 1 else round(value)

    def rule(self, value: int) -> dict[str, Any]:
        """The limit in the form of the inventory and of gpu_limits.py."""
        if self.kind == "application_clocks":
            return {self.kind: {"memory_mhz": self.memory_mhz, "graphics_mhz": value}}
        return {self.kind: [self.listed[0], value] if self.kind == "locked_graphics_mhz" else value}

    def setting(self, value: int) -> Setting:
        """The limit and the limit of the other kind in force, for the power plan."""
        return Setting(value, self.in_force) if self.kind == "power_limit_w" else Setting(self.in_force, value)


Limits = dict[str, int]
"""The limit of each group by its key, W or MHz."""


def at(groups: Iterable[Group], share: float) -> Limits:
    """The limits of all groups at a share of their ranges."""
    return {group.key: group.at(share) for group in groups}


def spread(groups: Sequence[Group], top: float, number: int) -> list[Limits]:
    """At most `number` different points in equal steps from the lowest limits to those at the share `top`."""
    points: list[Limits] = []
    for step in range(number):
        point = at(groups, top * step / (number - 1))
        if point not in points:
            points.append(point)
    return points


class Point(Struct, frozen=True):
    """One point. `limits`: by group. `verdict` of the power plan, "" if it cannot be made, and `why`. `tflops` and
    `watts`: of all GPUs together; `clock_mhz`: the slowest clock; `temperature_c`: of the hottest GPU; `reasons`: all
    bits of NVML's reasons for a lower clock. None: not measured or not reported. `each_tflops`, `sensors`: of each GPU.
    """

    limits: Limits
    verdict: str = ""
    why: str = ""
    tflops: float | None = None
    watts: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    reasons: int | None = None
    each_tflops: tuple[float, ...] = ()
    sensors: tuple[Sensors, ...] = ()

    @property
    def per_watt(self) -> float | None:
        """GFLOPS per watt of the GPUs."""
        return 1000 * self.tflops / self.watts if self.tflops and self.watts else None

    def with_measurement(self, tflops: Sequence[float], sensors: Sequence[Sensors]) -> Point:
        """The point with the speed and the sensors of each GPU."""

        def known(name: str) -> list[Any]:
            values = [getattr(gpu, name) for gpu in sensors]
            return [] if None in values else values

        watts, clocks, degrees, bits = map(known, ("power_w", "clock_mhz", "temperature_c", "reasons"))
        return replace(
            self,
            tflops=round(sum(tflops), 3),
            watts=round(sum(watts), 1) if watts else None,
            clock_mhz=min(clocks, default=None),
            temperature_c=max(degrees, default=None),
            reasons=reduce(or_, bits) if bits else None,
            each_tflops=tuple(tflops),
            sensors=tuple(sensors),
        )


class Supplies(Struct, frozen=True):
    """The supplies of the machine, or the reason why they are `unknown`."""

    rig: Rig | None = None
    circuits: tuple[Circuit, ...] = ()
    unknown: str = ""

    @property
    def name(self) -> str:
        """`3 x 1100 W on one rail`."""
        return " and ".join(circuit.name for circuit in self.circuits)

    def point(self, groups: Sequence[Group], limits: Limits) -> Point:
        """The point with these limits and the verdict of the power plan."""
        if self.rig is None:
            return Point(limits)
        settings = {group.key: group.setting(limits[group.key]) for group in groups}
        loads = budget(self.rig, self.circuits, by_model=settings).loads
        worst = max(loads, key=lambda load: VERDICTS.index(load.verdict))
        return Point(limits, worst.verdict, worst.reasons[0].text if worst.reasons else "")

    def highest(self, groups: Sequence[Group]) -> float | None:
        """The highest share of the ranges that they carry; None if they do not carry the lowest limits."""
        for step in range(SHARES, -1, -1):
            if self.point(groups, at(groups, step / SHARES)).verdict != "does not fit":
                return step / SHARES
        return None


def supplies_of(rig: Rig | None, groups: Sequence[Group]) -> Supplies:
    """The supplies of a rig for these GPUs, or the reason why no power plan can be made."""
    if rig is None:
        return Supplies(unknown="the inventory names no rig for this host")
    present = sorted(group.key for group in groups for _ in group.uuids)
    if present != sorted(rig.gpus.values()):
        return Supplies(unknown=f"the GPUs are not those of the rig {rig.key}")
    lacks = missing(rig, None)
    if lacks:
        return Supplies(unknown=f"the rig {rig.key} does not say {lacks[0].text}")
    try:
        return Supplies(rig, circuits(rig, rig.key))
    except RigwrightError as error:
        return Supplies(unknown=error.found)


class Sweep(HostResult, frozen=True):
    """A sweep over the limits of a host.

    `at`: the time of the plan, UTC. `unit`: W or MHz. `groups`: the name of the GPUs of each group. `gpus`: bus id and
    UUID of each GPU, in the order of `each_tflops`. `before`: the limits before the sweep, None where the driver does
    not say. `points`: in the order of the limits. `named`: by NAMES the number of the point. `supplies`: their name, or
    why they are unknown; `ends`: the lowest point that they do not carry. `errors`: by place the reason why something
    was not measured. `chosen`: the chosen name, or "". `write`: the line for the inventory, `write_to`: its place.
    """

    KEY = "sweep"

    at: str
    unit: str
    groups: dict[str, str]
    gpus: tuple[str, ...] = ()
    before: dict[str, int | None] = field(default_factory=dict)
    points: tuple[Point, ...] = ()
    named: dict[str, int] = field(default_factory=dict)
    supplies: str = ""
    ends: Point | None = None
    errors: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None
    chosen: str = ""
    write: str = ""
    write_to: str = ""


class SweepPlan(Struct, frozen=True):
    """The plan of a sweep. `sweep`: without measurements. `settle_s`, `seconds`: the times of each point. `notes`: texts
    to read before consent. `all_gpus`: whether every GPU of the host is in a group."""

    groups: tuple[Group, ...]
    supplies: Supplies
    sweep: Sweep
    settle_s: float
    seconds: float
    notes: tuple[str, ...]
    all_gpus: bool
    simulated: bool

    @property
    def rules(self) -> list[dict[str, dict[str, object]]]:
        """The limits of each point by UUID, for limits_sweep.py."""
        return [
            {uuid: group.rule(point.limits[group.key]) for group in self.groups for uuid in group.uuids}
            for point in self.sweep.points
        ]


def in_words(limits: Limits, unit: str) -> str:
    """`185 W`; `150/285 W` for several groups."""
    return f"{'/'.join(map(str, limits.values()))} {unit}"


def held_by_clocks(points: Sequence[Point]) -> bool:
    """Whether all measured points are equally fast because a limit of the clocks holds the GPUs."""
    speeds = [point.tflops for point in points if point.tflops]
    equal = len(speeds) > 1 and min(speeds) >= max(speeds) * (1 - SAME_PERCENT / 100)
    return equal and all((point.reasons or 0) & CLOCKS_REASON for point in points if point.tflops)


def best_points(points: Sequence[Point]) -> dict[str, int]:
    """The number of the best point by each of NAMES, among the measured points that the supplies carry; {} if a limit
    of the clocks makes all equal."""
    if held_by_clocks(points):
        return {}
    carried = {number: point for number, point in enumerate(points) if point.tflops and point.verdict != "does not fit"}
    if not carried:
        return {}
    most = max(point.tflops or 0 for point in carried.values())
    best = {"fastest": _least_watts(carried, most * (1 - SAME_PERCENT / 100))}
    if all(point.per_watt for point in carried.values()):
        best["per-watt"] = max(carried, key=lambda number: carried[number].per_watt or 0)
        best["quiet"] = _least_watts(carried, (carried[best["fastest"]].tflops or 0) * QUIET_PERCENT / 100)
    return best


def _least_watts(points: Mapping[int, Point], tflops: float) -> int:
    """The number of the point with the least power, or with the lowest limit, that reaches this speed."""
    enough = [number for number, point in points.items() if (point.tflops or 0) >= tflops]
    return min(enough, key=lambda number: (points[number].watts or 0, number))


def limits_with(now: Mapping[str, Any], groups: Sequence[Group], limits: Limits, all_gpus: bool) -> dict[str, Any]:
    """The variable `limits` of the inventory with these limits in place of others of their kind.

    A single group with all GPUs sets the limit of the host; otherwise each group is an exception by model.
    """
    kinds = {group.kind for group in groups}
    exceptions = {
        name: {key: value for key, value in own.items() if key not in kinds}
        for name, own in (now.get("gpus") or {}).items()
    }
    host = {key: value for key, value in now.items() if key != "gpus"}
    if len(groups) == 1 and all_gpus:
        host |= groups[0].rule(limits[groups[0].key])
    else:
        for group in groups:
            exceptions[group.key] = {**exceptions.get(group.key, {}), **group.rule(limits[group.key])}
    exceptions = {name: own for name, own in exceptions.items() if own}
    return {**host, "gpus": exceptions} if exceptions else host
