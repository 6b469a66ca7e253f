"""The plot of speed-up against the number of GPUs, with the linear speed-up beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 320.0, 200.0, 34.0, 30.0, 12.0


class Point(NamedTuple):
    """Coordinates and a label."""

    x: float
    y: float
    label: str


class Plot(Struct, frozen=True):
    """Coordinates in a box of 320 x 200; `expected`: the value of the rig, or None."""

    points: tuple[Point, ...]
    ideal: str
    line: str
    ticks_x: tuple[Point, ...]
    ticks_y: tuple[Point, ...]
    expected: Point | None


def plotted(scaling: list[dict[str, Any]], expected: dict[str, Any] | None) -> Plot | None:
    """The plot; None for fewer than two measurements."""
    rows = [(int(row["gpus"]), float(row["speed_up"])) for row in scaling if row.get("speed_up")]
    if len(rows) < 2:
        return None
    most = max(count for count, _ in rows)

    def at(count: float, speed: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - 12) * (count - 1) / (most - 1)
        return round(x, 1), round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * speed / most, 1)

    points = tuple(Point(*at(count, speed), f"{speed:.2f}") for count, speed in rows)
    step = max(1, most // 4)
    inner = [count for count in range(2, most) if count % step == 0 and most - count >= step]
    ticks = [1, *inner, most]
    rig_point = None
    if expected and 1 <= expected["gpus"] <= most:
        rig_point = Point(*at(expected["gpus"], expected["speed_up"]), f"{expected['speed_up']:g}")
    return Plot(
        points,
        "M{} {}L{} {}".format(*at(1, 1), *at(most, most)),
        "M" + "L".join(f"{point.x} {point.y}" for point in points),
        tuple(Point(at(count, 0)[0], HEIGHT - BOTTOM + 16, str(count)) for count in ticks),
        tuple(Point(LEFT - 6, at(1, count)[1] + 4, str(count)) for count in ticks),
        rig_point,
    )
