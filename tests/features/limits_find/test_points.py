"""The points of a sweep over limits: which are tried, where the supplies end, which three are named, and the line for
the inventory."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.facts.nccl.load import Sensors
from rigwright.features.limits_find import points as limit_points
from rigwright.features.limits_find.points import Group, Point

RTX = Group("rtx-3090", "NVIDIA GeForce RTX 3090", ("GPU-a", "GPU-b", "GPU-c"), "power_limit_w", 100, 350)
GTX = Group("gtx-1070", "NVIDIA GeForce GTX 1070", ("GPU-d",), "power_limit_w", 76, 151)
V100 = Group(
    "v100-sxm2-16gb", "Tesla V100-SXM2-16GB", ("GPU-a",), "application_clocks", 765, 1530, (757, 765, 1005, 1290, 1530), 877
)  # fmt: skip


def test_points_are_round_and_end_at_the_ends() -> None:
    points = limit_points.spread([RTX], 1.0, 7)
    assert [point["rtx-3090"] for point in points] == [100, 140, 185, 225, 265, 310, 350]
    both = limit_points.spread([RTX, GTX], 1.0, 3)
    assert [tuple(point.values()) for point in both] == [(100, 76), (225, 115), (350, 151)]
    half = limit_points.spread([RTX], 0.5, 3)
    assert [point["rtx-3090"] for point in half] == [100, 160, 225]


def test_points_that_would_be_the_same_are_one() -> None:
    narrow = replace(RTX, low=340)
    assert [point["rtx-3090"] for point in limit_points.spread([narrow], 1.0, 7)] == [340, 345, 350]


def test_clocks_are_those_that_the_gpu_lists() -> None:
    assert [point["v100-sxm2-16gb"] for point in limit_points.spread([V100], 1.0, 4)] == [765, 1005, 1290, 1530]
    assert V100.rule(1005) == {"application_clocks": {"memory_mhz": 877, "graphics_mhz": 1005}}
    assert replace(V100, kind="locked_graphics_mhz").rule(1005) == {"locked_graphics_mhz": [757, 1005]}
    assert RTX.rule(225) == {"power_limit_w": 225}


def test_where_the_supplies_of_a_rig_end() -> None:
    """The verdicts are those of power.plan: two RTX 3090 on one supply of 750 W do not fit at 350 W."""
    supplies = limit_points.supplies_of(catalogue.rig("rig-3090", "test"), [RTX])
    assert supplies.name == "750 W and 750 W"
    assert supplies.point([RTX], {"rtx-3090": 285}).verdict == "tight"
    beyond = supplies.point([RTX], {"rtx-3090": 350})
    assert (beyond.verdict, "one GPU's spike" in beyond.why) == ("does not fit", True)
    top = supplies.highest([RTX])
    assert top is not None
    assert supplies.point([RTX], limit_points.at([RTX], top)).verdict == "tight"
    assert supplies.point([RTX], {"rtx-3090": RTX.at(top) + 5}).verdict == "does not fit"


@pytest.mark.parametrize(
    ("rig", "groups", "why"),
    [
        ("", [RTX], "names no rig"),
        ("servbadge", [RTX], "are not those of the rig servbadge"),
        ("rig-3090", [replace(RTX, uuids=("GPU-a",))], "are not those of the rig rig-3090"),
    ],
)
def test_supplies_that_are_not_known(rig: str, groups: list[Group], why: str) -> None:
    supplies = limit_points.supplies_of(catalogue.rig(rig, "test") if rig else None, groups)
    assert why in supplies.unknown
    assert supplies.point(groups, limit_points.at(groups, 1.0)).verdict == ""
    assert supplies.highest(groups) == 1.0


def test_no_limit_of_the_range_is_carried() -> None:
    rig = catalogue.rig("servbadge", "test")
    small = replace(rig, supplies=(replace(rig.supplies[0], watts=400, count=1, shared=False),))
    group = Group("v100-sxm2-16gb", "V100", ("a", "b", "c", "d"), "power_limit_w", 150, 300)
    assert limit_points.supplies_of(small, [group]).highest([group]) is None


def points(*values: tuple[float, float], verdicts: dict[int, str] | None = None) -> list[Point]:
    """Points of TFLOPS and watts; all fit but those of `verdicts`."""
    given = verdicts or {}
    return [
        Point({"x": number}, given.get(number, "fits"), tflops=tflops, watts=watts)
        for number, (tflops, watts) in enumerate(values)
    ]


CURVE = ((40.0, 300.0), (70.0, 450.0), (85.0, 600.0), (95.0, 780.0), (100.0, 950.0), (100.4, 1040.0))


def test_the_three_points() -> None:
    """The last two are as fast as each other, within one percent: the one that draws less is the fastest."""
    assert limit_points.best_points(points(*CURVE)) == {"fastest": 4, "per-watt": 1, "quiet": 2}


def test_what_the_supplies_do_not_carry_is_not_named() -> None:
    beyond = points(*CURVE, verdicts={3: "tight", 4: "does not fit", 5: "does not fit"})
    assert limit_points.best_points(beyond) == {"fastest": 3, "per-watt": 1, "quiet": 2}
    assert limit_points.best_points(points((1.0, 1.0), verdicts={0: "does not fit"})) == {}


def test_what_was_not_measured_is_not_named() -> None:
    some = points(*CURVE)
    some[1] = Point({"x": 1}, "fits")
    assert limit_points.best_points(some) == {"fastest": 4, "per-watt": 2, "quiet": 2}
    dark = [replace(point, watts=None) for point in points(*CURVE)]
    assert limit_points.best_points(dark) == {"fastest": 4}, (
        "without power only speed counts, and the lower limit of equals"
    )
    assert limit_points.best_points([]) == {}


def test_a_point_with_its_measurement() -> None:
    sensors = (Sensors(1905, 285.2, 71, 4), Sensors(1800, 284.8, 64, 32))
    point = Point({"x": 285}, "tight", "why").with_measurement((30.0, 28.0), sensors)
    assert (point.tflops, point.watts, point.clock_mhz, point.temperature_c, point.reasons) == (58, 570, 1800, 71, 36)
    assert point.per_watt == pytest.approx(101.75, abs=0.01)
    silent = Point({"x": 285}).with_measurement((30.0,), (Sensors(None, None, 60, None),))
    assert (silent.watts, silent.per_watt, silent.clock_mhz, silent.temperature_c) == (None, None, None, 60)


@pytest.mark.parametrize(
    ("now", "groups", "all_gpus", "expected"),
    [
        ({}, [RTX], True, {"power_limit_w": 225}),
        (
            {"persistence": True, "power_limit_w": 285, "gpus": {"GPU-b": {"power_limit_w": 200}}},
            [RTX],
            True,
            {"persistence": True, "power_limit_w": 225},
        ),
        (
            {"gpus": {"PCIE-2": {"power_limit_w": 200, "persistence": True}}},
            [RTX],
            True,
            {"power_limit_w": 225, "gpus": {"PCIE-2": {"persistence": True}}},
        ),
        ({"persistence": True}, [RTX], False, {"persistence": True, "gpus": {"rtx-3090": {"power_limit_w": 225}}}),
        (
            {"power_limit_w": 140},
            [RTX, GTX],
            True,
            {"power_limit_w": 140, "gpus": {"rtx-3090": {"power_limit_w": 225}, "gtx-1070": {"power_limit_w": 115}}},
        ),
    ],
)
def test_the_variable_of_the_inventory(
    now: dict[str, Any], groups: list[Group], all_gpus: bool, expected: dict[str, Any]
) -> None:
    limits = {"rtx-3090": 225, "gtx-1070": 115}
    assert limit_points.limits_with(now, groups, limits, all_gpus) == expected
