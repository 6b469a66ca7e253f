"""The points of `invoke limits.find`: which limits are tried, which of them the supplies carry, and which are worth
taking.

A point has one limit for each group of equal GPUs. All groups go from their lowest to their highest limit in the same
shares, so that a point of a mixed machine is one setting of the whole machine. docs/guide/limits_find.md explains the
rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field

from rigwright.catalogue import Rig
from rigwright.core.errors import RigwrightError
from rigwright.core.host_result import HostResult
from rigwright.facts.nccl.load import Sensors
from rigwright.features.power.budget import Circuit, budget, circuits
from rigwright.features.power.draw import Setting
from rigwright.features.power.missing import missing

Kind = Literal["power_limit_w", "application_clocks", "locked_graphics_mhz"]
"""The limit that is swept, by its key in the inventory."""

STEP_W = 5
"""Power limits are multiples of it, but for the lowest and the highest."""
SAME_PERCENT = 1.0
"""Speeds up to this apart count as the same, and the one that draws less is named. Assumed: the noise of one point."""
QUIET_PERCENT = 80
"""Of the speed of the fastest point that the quiet one has to reach. A choice, not a measurement."""
SHARES = 200
"""Into so many parts the range is divided when the highest limit is looked for that the supplies carry."""

NAMES = {
    "fastest": "the fastest that the supplies carry",
    "per-watt": "the most products per watt",
    "quiet": f"the fewest watts with at least {QUIET_PERCENT} % of the fastest",
}
"""The points that are named, with their rules."""


class Group(Struct, frozen=True):
    """GPUs that get the same limit: those of one model.

    `key`: the model's key, or the UUID of a GPU of a model that nobody knows. `low` and `high`: the range of the sweep,
    W or MHz. `listed`: the clocks that all of them support, lowest first; () for watts. `memory_mhz`: of application
    clocks. `in_force`: the other limit, which stays: the power limit while clocks are swept, the clocks while power is.
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
        """The limit at a share of the range, 0 to 1."""
        value = self.low + share * (self.high - self.low)
        if self.listed:
            return min(self.listed, key=lambda mhz: abs(mhz - value))
        return min(max(round(value / STEP_W) * STEP_W, self.low), self.high) if 0 < share < 1 else round(value)

    def rule(self, value: int) -> dict[str, Any]:
        """The limit as the inventory and gpu_limits.py write it."""
        if self.kind == "application_clocks":
            return {self.kind: {"memory_mhz": self.memory_mhz, "graphics_mhz": value}}
        return {self.kind: [self.listed[0], value] if self.kind == "locked_graphics_mhz" else value}

    def setting(self, value: int) -> Setting:
        """The limit, and the other one that is in force, as the power plan takes them."""
        return Setting(value, self.in_force) if self.kind == "power_limit_w" else Setting(self.in_force, value)


Limits = dict[str, int]
"""The limit of each group, by its key."""


def at(groups: Iterable[Group], share: float) -> Limits:
    """The limits of all groups at a share of their ranges."""
    return {group.key: group.at(share) for group in groups}


def spread(groups: Sequence[Group], top: float, number: int) -> tuple[Limits, ...]:
    """So many points from the lowest limits to those at the share `top`, in equal steps; fewer where two would be the
    same."""
    points: list[Limits] = []
    for step in range(number):
        point = at(groups, top * step / (number - 1))
        if point not in points:
            points.append(point)
    return tuple(points)


class Carried(Struct, frozen=True):
    """What the power plan says of one point: fits, tight, does not fit, or "" where it cannot be planned; and why."""

    verdict: str = ""
    why: str = ""


class Supplies(Struct, frozen=True):
    """The supplies of the machine, or why nothing is known of them."""

    rig: Rig | None = None
    circuits: tuple[Circuit, ...] = ()
    unknown: str = ""

    @property
    def name(self) -> str:
        """`3 x 1100 W on one rail`."""
        return " and ".join(circuit.name for circuit in self.circuits)

    def carry(self, groups: Sequence[Group], limits: Limits) -> Carried:
        """Whether they carry all GPUs with these limits."""
        if self.rig is None:
            return Carried()
        settings = {group.key: group.setting(limits[group.key]) for group in groups}
        carried = budget(self.rig, self.circuits, by_model=settings)
        worst = next((load for load in carried.loads if load.verdict == carried.verdict), None)
        why = worst.reasons[0].text if worst is not None and worst.reasons else ""
        return Carried(carried.verdict, why)

    def highest(self, groups: Sequence[Group]) -> float | None:
        """The highest share of the ranges that they carry; None when not even the lowest limits are."""
        for step in range(SHARES, -1, -1):
            if self.carry(groups, at(groups, step / SHARES)).verdict != "does not fit":
                return step / SHARES
        return None


def supplies_of(rig: Rig | None, groups: Sequence[Group]) -> Supplies:
    """The supplies of a rig for these GPUs; with the reason where the power plan cannot be made for them."""
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


class Point(Struct, frozen=True):
    """One point. `limits`: by group. `tflops` and `watts`: of all GPUs together; `clock_mhz`: of the slowest clock;
    `temperature_c`: of the hottest; `reasons`: all bits of NVML's reasons for a lower clock. None: not measured, or not
    reported. `each_tflops` and `sensors`: of each GPU."""

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


def measured(limits: Limits, carried: Carried, tflops: Sequence[float], sensors: Sequence[Sensors]) -> Point:
    """The point with what was measured at it."""

    def known(name: str) -> list[float]:
        values = [getattr(one, name) for one in sensors]
        return values if values and None not in values else []

    watts, clocks, degrees, bits = map(known, ("power_w", "clock_mhz", "temperature_c", "reasons"))
    reasons = 0
    for one in bits:
        reasons |= int(one)
    return Point(
        limits,
        carried.verdict,
        carried.why,
        round(sum(tflops), 3),
        round(sum(watts), 1) if watts else None,
        min(clocks) if clocks else None,
        max(degrees) if degrees else None,
        reasons if bits else None,
        tuple(tflops),
        tuple(sensors),
    )


class Sweep(HostResult, frozen=True):
    """A sweep over the limits of a host.

    `at`: when it was planned, UTC. `unit`: W or MHz. `groups`: the name of the GPUs of each group. `gpus`: bus id and
    UUID of each GPU, in the order of `each_tflops`. `before`: the limits that were in force, None where the driver does
    not say. `points`: in the order of the limits. `named`: the number of the point of each of NAMES. `supplies`: what
    they are, or why that is not known; `ends`: the lowest point that they do not carry, and why. `errors`: what was not
    measured, by place. `chosen`: one of NAMES, or "". `write`, `write_to`: its line for the inventory, and the place of
    that.
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
    """What a sweep will do. `sweep` has everything but measurements; `rules`: the rules of each point, by UUID.
    `notes`: what to know before it is agreed to. `all_gpus`: whether every GPU of the host is in a group."""

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
        """The points for limits_sweep.py."""
        return [
            {uuid: group.rule(point.limits[group.key]) for group in self.groups for uuid in group.uuids}
            for point in self.sweep.points
        ]

    @property
    def limit_s(self) -> int:
        """The time limit of the program."""
        return round(180 + len(self.sweep.points) * (self.settle_s + self.seconds) * 1.5)

    @property
    def expected_s(self) -> int:
        """About how long it takes."""
        return round(10 + len(self.sweep.points) * (self.settle_s + self.seconds))


def in_words(limits: Limits, unit: str) -> str:
    """`185 W`; `150/285 W` of several groups."""
    return f"{'/'.join(map(str, limits.values()))} {unit}"


def named(points: Sequence[Point]) -> dict[str, int]:
    """The numbers of the points worth taking, by NAMES. Points that the supplies do not carry, or that were not
    measured, count for none."""
    carried = {number: point for number, point in enumerate(points) if point.tflops and point.verdict != "does not fit"}
    if not carried:
        return {}
    most = max(point.tflops or 0 for point in carried.values())
    found = {"fastest": _least_watts(carried, most * (1 - SAME_PERCENT / 100))}
    if all(point.per_watt for point in carried.values()):
        found["per-watt"] = max(carried, key=lambda number: carried[number].per_watt or 0)
        found["quiet"] = _least_watts(carried, (carried[found["fastest"]].tflops or 0) * QUIET_PERCENT / 100)
    return found


def _least_watts(points: Mapping[int, Point], tflops: float) -> int:
    """The point of least power (of the lowest limit, where power is not reported) of those that are at least so
    fast."""
    enough = [number for number, point in points.items() if (point.tflops or 0) >= tflops]
    return min(enough, key=lambda number: (points[number].watts or 0, number))


def limits_with(now: Mapping[str, Any], groups: Sequence[Group], limits: Limits, all_gpus: bool) -> dict[str, Any]:
    """The variable `limits` of the inventory with these limits in place of others of their kind; its other keys stay.

    The limit of one group with all GPUs of the host is that of the host; others are exceptions by model.
    """
    kinds = {group.kind for group in groups}
    exceptions = now.get("gpus") or {}
    kept = {name: {key: value for key, value in own.items() if key not in kinds} for name, own in exceptions.items()}
    fresh = {key: value for key, value in now.items() if key != "gpus"}
    if len(groups) == 1 and all_gpus:
        fresh |= groups[0].rule(limits[groups[0].key])
    else:
        for group in groups:
            kept[group.key] = {**kept.get(group.key, {}), **group.rule(limits[group.key])}
    kept = {name: own for name, own in kept.items() if own}
    return {**fresh, "gpus": kept} if kept else fresh
