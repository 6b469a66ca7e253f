"""The comparison of a GPU's figures with its own earlier ones."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from rigwright.checks import own_past
from rigwright.core.shortening import LONGEST
from rigwright.facts.gpu.figures import Dated, GpuFigures

NOW = GpuFigures(
    "GPU-0", "Tesla V100-SXM2-16GB", 200.0, "535.161.08", "12.2", 600.0, {"fp32": 14.0, "fp64": 7.0},
    {"fp32": 1500.0, "fp64": 1500.0},
    750.0, 12.6, 12.5, 60.0,
)  # fmt: skip


def then(day: int, **changed: Any) -> Dated:
    """Returns figures of a day in May."""
    return Dated(f"2026-05-{day:02}T12:00:00+00:00", f"r{day}", replace(NOW, **changed))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ()),
        ({"driver": "535.54.03"}, ()),
        ({"power_limit_w": 200.4}, ()),
        ({"asked_s": 250.0}, ()),
        ({"power_limit_w": 250.0}, ("its power limit was 250 W and is 200 W",)),
        ({"power_limit_w": None}, ("its power limit is not known of both",)),
        ({"driver": "550.54.15"}, ("the driver was 550.54.15 and is 535.161.08",)),
        ({"driver": ""}, ("the driver was unknown and is 535.161.08",)),
        ({"cuda": "12.4"}, ("the CUDA runtime was 12.4 and is 12.2",)),
        ({"asked_s": 6.0}, ("it worked for 6 s then and for 10 min now",)),
        ({"asked_s": 1800.0}, ("it worked for 30 min then and for 10 min now",)),
    ],
)
def test_settings_that_change_the_speed(changed: dict[str, Any], words: tuple[str, ...]) -> None:
    then_figures = then(1, **changed).figures
    assert own_past.other_settings(NOW, then_figures) == words
    if changed.get("power_limit_w", 0) is None:
        assert own_past.other_settings(replace(NOW, power_limit_w=None), then_figures) == (), "both are not known"


def test_the_fastest_earlier_stress_with_the_same_settings_counts() -> None:
    before = (
        then(3, tflops={"fp32": 15.0}),
        then(5, tflops={"fp32": 14.2}),
        then(4, tflops={"fp32": 18.0}, power_limit_w=300.0),
    )
    found = own_past.difference(NOW, before)
    assert found
    assert (found.then, found.at[:10], found.settings) == (15.0, "2026-05-03", ())
    assert own_past.compared_with(NOW, before)[:10] == "2026-05-05"


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"tflops": {"fp32": 14.7, "fp64": 7.0}}, ""),
        ({"tflops": {"fp32": 13.0, "fp64": 7.0}}, ""),
        ({"tflops": {"fp32": 14.9, "fp64": 7.6}}, "FP64"),
        ({"memory_gb_s": 830.0}, ""),
        ({"memory_gb_s": 840.0}, "copies within its memory"),
        ({"to_device_gb_s": 16.0}, ""),
        ({"to_device_gb_s": 17.0}, "copies to it"),
        ({"from_device_gb_s": 25.0}, "copies from it"),
        ({"from_device_gb_s": None, "memory_gb_s": None}, ""),
        ({"tflops": {}, "clocks_mhz": {}}, ""),
    ],
)
def test_what_counts_with_the_same_settings(changed: dict[str, Any], name: str) -> None:
    found = own_past.difference(NOW, (then(1, **changed),))
    assert (found.name if found else "") == name


def test_with_other_settings_the_newest_counts_in_either_direction() -> None:
    before = (then(2, power_limit_w=300.0, tflops={"fp32": 18.0}), then(6, power_limit_w=150.0, tflops={"fp32": 11.0}))
    found = own_past.difference(NOW, before)
    assert found is not None
    assert found.words == "27% faster in FP32 than on 2026-05-06 with other settings (14.0 TFLOPS, then 11.0)"
    assert found.settings == ("its power limit was 150 W and is 200 W",)
    assert found.brief == "14.0 TFLOPS: 27% faster than on 2026-05-06: its power limit was 150 W and is 200 W"
    assert own_past.compared_with(NOW, before) == ""
    assert own_past.difference(NOW, ()) is None
    now = datetime.datetime.now().astimezone()
    assert own_past.on_day(now.isoformat()) == f"on {now:%Y-%m-%d %H:%M}", "of today, with its time"


def test_many_settings_are_cut_short_in_a_line_of_the_history() -> None:
    changed = {"power_limit_w": 300.0, "driver": "550.54.15", "cuda": "12.4", "asked_s": 6.0, "tflops": {"fp32": 18.0}}
    found = own_past.difference(NOW, (then(2, **changed),))
    assert found is not None
    assert len(found.settings) == 4
    assert found.brief == (
        "14.0 TFLOPS: 22% slower than on 2026-05-02: its power limit was 300 W and is 200 W;"
        " the driver was 550.54.15 and is 535.161.08; and 2 other settings"
    )
    assert len(found.brief) < LONGEST, "so history.diff shows it whole"
