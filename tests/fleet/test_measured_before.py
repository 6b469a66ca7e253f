"""What earlier stresses measured of a machine's GPUs: written to the history, read from it, and its differences."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rigwright.core.command import Result
from rigwright.facts.stress import figures, measured
from rigwright.fleet import measured_before
from rigwright.history import History, diff
from tests.history.test_history import NOON, run_of
from tests.paths import CASES


def kept(**figures_of: float) -> list[dict[str, Any]]:
    """Returns what the history keeps of a stress of one GPU, with TFLOPS by kind of product."""
    case = yaml.safe_load((CASES / "checks" / "load.speed" / "one_gpu.yml").read_text())
    document = json.loads(case["facts"]["stress.measured"])
    for one in document["stages"][0]["results"][0]["products"]:
        one["tflops"] = figures_of.get(one["kind"], one["tflops"])
    assert measured.kept is not None
    found = measured.kept(measured.parse(Result(0, json.dumps(document).encode())))
    assert isinstance(found, list)
    return found


@pytest.fixture
def past(tmp_path: Path) -> Iterator[History]:
    """Yields a history with three stresses: as fast, slower, and one of another form."""
    with History.open(tmp_path / "history.sqlite") as opened:
        for number, value in enumerate((kept(), kept(fp32=12.0), [{"uuid": "GPU-0"}], kept(fp32=12.0, fp16=60.0))):
            opened.record(run_of(number, {diff.FIGURES: value}))
        yield opened


def test_the_name_in_the_history_is_that_of_the_fact() -> None:
    assert measured.name == diff.FIGURES


def test_figures_come_back_as_they_were_and_those_of_another_form_are_left_out(past: History) -> None:
    found = measured_before.recorded(past, past.named("servbadge"))
    assert list(found) == ["GPU-0"]
    assert [one.figures.tflops["fp32"] for one in found["GPU-0"]] == [14.0, 12.0, 12.0]
    assert [one.run for one in found["GPU-0"]] == ["r0", "r1", "r3"]
    first = found["GPU-0"][0]
    assert (first.figures.memory_gb_s, first.figures.alone_max_c, first.figures.core_max_c) == (750.0, 66, 66)
    assert first.at == "2026-11-21T12:00:02+00:00"
    assert measured_before.recorded(past, None) == {}


def test_a_line_for_each_gpu_that_became_slower(past: History) -> None:
    machine = past.named("servbadge")
    changes = measured_before.became(past, machine, NOON - datetime.timedelta(days=1))
    assert [(one.run, one.subject, one.before) for one in changes] == [
        ("r1", "stress.measured[GPU-0] FP32", "14.0 TFLOPS"),
        ("r3", "stress.measured[GPU-0] FP16", "110.0 TFLOPS"),
    ]
    assert changes[0].after == "12.0 TFLOPS: 14% slower than on 2026-11-21 at the same power limit"
    assert measured_before.became(past, machine, NOON + datetime.timedelta(days=1)) == []
    assert past.diff("servbadge", NOON - datetime.timedelta(days=1)) == [], "figures are not listed one by one"


def test_a_gpu_that_computed_nothing_alone_has_no_figures() -> None:
    case = yaml.safe_load((CASES / "facts" / "stress.measured" / "measured.yml").read_text())["answer"]
    assert figures(measured.parse(Result(0, case.encode()))) == ()


@pytest.mark.parametrize(
    ("reasons", "slowed_by"),
    [
        ({}, ""),
        ({"heat, by the driver": 0.01}, ""),
        ({"power limit": 0.6, "heat, by the driver": 0.3}, "power limit"),
    ],
)
def test_the_reason_that_counts_is_the_most_frequent_one(reasons: dict[str, float], slowed_by: str) -> None:
    case = yaml.safe_load((CASES / "checks" / "load.speed" / "one_gpu.yml").read_text())
    document = json.loads(case["facts"]["stress.measured"])
    document["stages"][0]["results"][0]["products"][0]["reasons"] = reasons
    (found,) = figures(measured.parse(Result(0, json.dumps(document).encode())))
    assert found.slowed_by == slowed_by
