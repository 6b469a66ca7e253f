"""`invoke limits.find` on the command line and its tables; what it does on a host is in
tests/end_to_end/test_limits_find.py."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from rigwright.cli import runner
from rigwright.core.errors import RigwrightError
from rigwright.core.process import prompt
from rigwright.facts.nccl.load import Sensors
from rigwright.features.limits_find import command, points as limit_points, table
from rigwright.features.limits_find.options import LimitsFindOptions
from rigwright.features.limits_find.points import Group, Point, Supplies, Sweep, SweepPlan
from rigwright.inventory.model import Host

RTX = Group("rtx-3090", "NVIDIA GeForce RTX 3090", ("GPU-a", "GPU-b"), "power_limit_w", 100, 350)
GTX = Group("gtx-1070", "NVIDIA GeForce GTX 1070", ("GPU-c",), "power_limit_w", 76, 151)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        *(({"points": text}, f"'{text}' is no number of points") for text in ("2", "17", "many")),
        *(({"lowest": text}, f"'{text}' is no number of watts or MHz") for text in ("100W", "-5")),
        *(({"highest": text}, f"'{text}' is no number of watts or MHz") for text in ("1e3", "0")),
        ({"choose": "best"}, "'best' is no known word"),
        ({"write": True}, "nothing is chosen"),
        ({"write": True, "choose": "none"}, "nothing is chosen"),
        ({"wheels": "/nowhere"}, "'/nowhere' is no directory"),
        ({"executor": "tls://one:8786"}, "a sweep asks and decides on this machine"),
    ],
)
def test_errors_before_connecting(options: dict[str, Any], found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run", lambda _options, prepare: prepare("id"))
    monkeypatch.setattr(prompt, "on_terminal", lambda: False)
    with pytest.raises(RigwrightError) as caught:
        command.limits_find(LimitsFindOptions(host="frame", **options))
    assert caught.value.where == f"--{next(iter(options))}"
    assert found in caught.value.found
    assert caught.value.expected, "it says what can be typed"


def test_one_host_at_a_time() -> None:
    find = command._Find(LimitsFindOptions(host="all"))
    bound = [SimpleNamespace(host=Host(name, (), {})) for name in ("a", "b")]
    with pytest.raises(RigwrightError, match="2 hosts are named") as caught:
        find.bind(None, bound)  # type: ignore[arg-type]
    assert caught.value.fix.endswith("limits.find --host a")


def sweep(*groups: Group) -> Sweep:
    """Returns a sweep at five points, of which the supplies carry three; the last point was not measured."""
    points = []
    for number, limits in enumerate(limit_points.spread(groups, 1.0, 5)):
        verdict = {2: "tight", 3: "does not fit", 4: "does not fit"}.get(number, "fits")
        point = Point(limits, verdict, "one GPU's spike alone makes it 905 W")
        speeds = [8.0 * (number + 3) for group in groups for _ in group.uuids]
        sensors = [Sensors(1100 + 200 * number, 90.0 + 60 * number, 50 + 5 * number, 4) for _ in speeds]
        points.append(point if number == 4 else point.with_measurement(speeds, sensors))
    return Sweep(
        "2026-11-23T04:00:00Z",
        "W",
        {group.key: f"{len(group.uuids)} x {group.name}" for group in groups},
        points=tuple(points),
        named=limit_points.best_points(points),
        supplies="750 W and 750 W",
        ends=points[3],
        errors={"point 5": "no end within 60 s"},
    )


def printed(columns: int, show: Callable[[Console], None]) -> list[str]:
    """Returns the lines of a terminal, of which none is too wide."""
    out = io.StringIO()
    show(Console(file=out, width=columns, force_terminal=True, color_system=None))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= columns, out.getvalue()
    return lines


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    ("groups", "limits"),
    [((RTX,), ("100 W", "225 W", "290 W")), ((RTX, GTX), ("100/76 W", "225/115 W", "290/130 W"))],
)
def test_the_table_fits_the_terminal(groups: tuple[Group, ...], limits: tuple[str, ...], columns: int) -> None:
    lines = printed(columns, lambda console: table.show(console, sweep(*groups)))
    words = " ".join(" ".join(lines).split())
    assert all(limit in words for limit in limits)
    title = next(line for line in lines if "TFLOPS" in line)
    assert title.split() == ["limit", "TFLOPS", "speed", "W", "W", "max", "per", "W", "MHz", "°C", "held", "by"]
    places = {line.index("power") for line in lines if line.strip().startswith(tuple("123")) and "power" in line}
    assert len(places) == 1, "the columns above and below the line are the same"
    end = next(number for number, line in enumerate(lines) if "the supplies end here (750 W and 750 W)" in line)
    assert any(line.split()[:2] == limits[2].split() for line in lines[end:]), "the limits beyond are below the line"
    assert f"fastest {limits[1]}" in words
    assert "tight for the supplies (fastest" in words
    assert "not measured: point 5: no end within 60 s" in words


@pytest.mark.parametrize("columns", [80, 120])
def test_the_announcement_fits_the_terminal(columns: int) -> None:
    unknown = "the inventory names no rig for this host"
    note = "the power limit of NVIDIA T600 at 0000:02:00.0 cannot be set; it computes along as it is"
    made = replace(sweep(RTX, GTX), supplies=unknown)
    plan = SweepPlan((RTX, GTX), Supplies(unknown=unknown), made, 30, 70, (note,), True, False)
    words = " ".join(" ".join(printed(columns, lambda console: table.announce(console, "rig", plan))).split())
    gpus = "2 x NVIDIA GeForce RTX 3090 and 1 x NVIDIA GeForce GTX 1070"
    assert f"rig: {gpus}; 5 points, power limit 100/76 W to 350/151 W, about 8 min" in words
    assert f"! supplies not known: {unknown}" in words
    assert "measured nevertheless" in words
    assert note in words


@pytest.mark.parametrize("columns", [80, 120])
def test_power_limits_that_a_clock_limit_makes_equal_are_not_called_best(columns: int) -> None:
    """On servbadge as provisioned 1005 MHz hold, and 150, 225 and 300 W are equally fast: that says nothing of them."""
    points = [
        Point(limits, "fits").with_measurement([36.9, 37.0], [Sensors(1005, 130.0, 50, 0x2)] * 2)
        for limits in limit_points.spread((RTX,), 1.0, 3)
    ]
    made = replace(sweep(RTX), points=tuple(points), named=limit_points.best_points(points), ends=None, errors={})
    assert made.named == {}
    words = " ".join(" ".join(printed(columns, lambda console: table.show(console, made))).split())
    assert (
        "all points are equally fast, because the limit of the clocks holds the GPUs: limits.find --clocks measures the clocks"
        in words
    )
    find = command._Find(LimitsFindOptions(host="rig", choose="fastest"))
    with pytest.raises(RigwrightError, match="limit of the clocks") as caught:
        find._choice(made, None)
    assert caught.value.fix == "limits.find --clocks"
    faster = [*points[:2], points[2].with_measurement([40.0, 40.0], [Sensors(1100, 200.0, 50, 0x2)] * 2)]
    assert set(limit_points.best_points(faster)) == {"fastest", "per-watt", "quiet"}


def test_a_point_without_sensors_has_no_figures_of_them() -> None:
    made = sweep(RTX)
    dark = [replace(point, watts=None, sensors=(), clock_mhz=None, reasons=None) for point in made.points]
    made = replace(made, points=tuple(dark), named=limit_points.best_points(dark))
    lines = printed(120, lambda console: table.show(console, made))
    row = next(line.split() for line in lines if line.startswith("100 W"))
    assert row[:5] == ["100", "W", "48.0", "50", "%"]
    assert set(row[5:]) == {"-", "50"}, "only the temperature is known beside the speed"


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (None, "-"),
        (0, "nothing"),
        (0x4, "power"),
        (0x24, "power, heat"),
        (0x88, "brake"),
        (0x8, "slowdown"),
        (0x48, "too hot"),
    ],
)
def test_why_a_clock_is_lower(reasons: int | None, words: str) -> None:
    assert table.held_by(reasons) == words
