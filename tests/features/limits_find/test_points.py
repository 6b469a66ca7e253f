"""The points of a sweep over limits: their limits, where the supplies end, the three best, and the inventory line."""

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
LISTED = (757, 765, 1005, 1290, 1530)
V100 = Group("v100-sxm2-16gb", "Tesla V100-SXM2-16GB", ("GPU-a",), "application_clocks", 765, 1530, LISTED, 877)


@pytest.mark.parametrize(
    ("groups", "top", "number", "limits"),
    [
        ([RTX], 1.0, 7, [(100,), (140,), (185,), (225,), (265,), (310,), (350,)]),
        ([RTX, GTX], 1.0, 3, [(100, 76), (225, 115), (350, 151)]),
        ([RTX], 0.5, 3, [(100,), (160,), (225,)]),
        ([replace(RTX, low=340)], 1.0, 7, [(340,), (345,), (350,)]),  # equal points are one
        ([V100], 1.0, 4, [(765,), (1005,), (1290,), (1530,)]),  # clocks that the GPU lists
    ],
)
def test_points_are_round_and_end_at_the_ends(
    groups: list[Group], top: float, number: int, limits: list[tuple[int, ...]]
) -> None:
    assert [tuple(point.values()) for point in limit_points.spread(groups, top, number)] == limits


def test_the_rule_of_a_limit() -> None:
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


CURVE = ((40.0, 300.0), (70.0, 450.0), (85.0, 600.0), (95.0, 780.0), (100.0, 950.0), (100.4, 1040.0))
"""TFLOPS and watts. The last two are equally fast, within one percent."""
POINTS = [Point({"x": number}, "fits", tflops=tflops, watts=watts) for number, (tflops, watts) in enumerate(CURVE)]
BEYOND = [replace(point, verdict="does not fit") for point in POINTS]


@pytest.mark.parametrize(
    ("points", "best"),
    [
        (POINTS, {"fastest": 4, "per-watt": 1, "quiet": 2}),
        ([*POINTS[:3], replace(POINTS[3], verdict="tight"), *BEYOND[4:]], {"fastest": 3, "per-watt": 1, "quiet": 2}),
        (BEYOND, {}),
        ([POINTS[0], Point({"x": 1}, "fits"), *POINTS[2:]], {"fastest": 4, "per-watt": 2, "quiet": 2}),  # not measured
        ([replace(point, watts=None) for point in POINTS], {"fastest": 4}),  # the lower limit of equal speeds
        ([], {}),
    ],
)
def test_the_best_points(points: list[Point], best: dict[str, int]) -> None:
    assert limit_points.best_points(points) == best


def test_a_point_with_its_measurement() -> None:
    sensors = (Sensors(1905, 285.2, 71, 4), Sensors(1800, 284.8, 64, 32))
    point = Point({"x": 285}, "tight", "why").with_measurement((30.0, 28.0), sensors)
    assert (point.tflops, point.watts, point.clock_mhz, point.temperature_c, point.reasons) == (58, 570, 1800, 71, 36)
    assert point.per_watt == pytest.approx(101.75, abs=0.01)
    silent = Point({"x": 285}).with_measurement((30.0,), (Sensors(None, None, 60, None),))
    assert (silent.watts, silent.per_watt, silent.clock_mhz, silent.temperature_c) == (None, None, None, 60)


BOTH = {"rtx-3090": {"power_limit_w": 225}, "gtx-1070": {"power_limit_w": 115}}


@pytest.mark.parametrize(
    ("now", "groups", "all_gpus", "expected"),
    [
        ({}, [RTX], True, {"power_limit_w": 225}),
        ({"power_limit_w": 285, "gpus": {"GPU-b": {"power_limit_w": 200}}}, [RTX], True, {"power_limit_w": 225}),
        (
            {"gpus": {"PCIE-2": {"power_limit_w": 200, "persistence": True}}},
            [RTX],
            True,
            {"power_limit_w": 225, "gpus": {"PCIE-2": {"persistence": True}}},
        ),
        ({"persistence": True}, [RTX], True, {"persistence": True, "power_limit_w": 225}),
        ({"persistence": True}, [RTX], False, {"persistence": True, "gpus": {"rtx-3090": {"power_limit_w": 225}}}),
        ({"power_limit_w": 140}, [RTX, GTX], True, {"power_limit_w": 140, "gpus": BOTH}),
    ],
)
def test_the_variable_of_the_inventory(
    now: dict[str, Any], groups: list[Group], all_gpus: bool, expected: dict[str, Any]
) -> None:
    assert limit_points.limits_with(now, groups, {"rtx-3090": 225, "gtx-1070": 115}, all_gpus) == expected
