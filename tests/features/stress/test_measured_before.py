"""The figures of earlier stresses and peer-to-peer tests: written to the history, read from it, and compared."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rigwright.core.command import Result
from rigwright.facts import FactStore
from rigwright.facts.nccl import p2p_test as nccl
from rigwright.features.stress import measured_before
from rigwright.features.stress.checks import supplied
from rigwright.features.stress.facts import figures, measured
from rigwright.history import History, differences
from tests.history.test_history import NOON, run_of
from tests.paths import CASES
from tests.test_cases import case_named


def one_gpu() -> Any:
    """Returns the document of a stress of one GPU."""
    return json.loads(case_named("checks", "load.speed", "one_gpu")["facts"]["stress.measured"])


def kept(**tflops: float) -> Any:
    """Returns what the history keeps of a stress of one GPU, with TFLOPS by kind of product."""
    document = one_gpu()
    for products in document["stages"][0]["results"][0]["products"]:
        products["tflops"] = tflops.get(products["kind"], products["tflops"])
    assert measured.kept is not None
    return measured.kept(measured.parse(Result(0, json.dumps(document).encode())))


@pytest.fixture
def past(tmp_path: Path) -> Iterator[History]:
    """Yields a history with three stresses: as fast, slower, and one of another form."""
    with History.open(tmp_path / "history.sqlite") as opened:
        for number, value in enumerate((kept(), kept(fp32=12.0), [{"uuid": "GPU-0"}], kept(fp32=12.0, fp16=60.0))):
            opened.record(run_of(number, {differences.FIGURES: value}))
        yield opened


def test_the_name_in_the_history_is_that_of_the_fact() -> None:
    assert measured.name == differences.FIGURES


def test_figures_come_back_as_they_were_and_those_of_another_form_are_left_out(past: History) -> None:
    ((uuid, every),) = measured_before.recorded(past, past.named("servbadge")).items()
    assert uuid == "GPU-0"
    assert [(one.run, one.figures.tflops["fp32"]) for one in every] == [("r0", 14.0), ("r1", 12.0), ("r3", 12.0)]
    first = every[0]
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


def at_12v(volts: float | None, watts: float = 298.0) -> Any:
    """Returns the document of a stress of one GPU with the lowest reading of the 12 V rail."""
    document = one_gpu()
    document["supplies"] |= {"source": "ipmi", "lowest_12v": volts, "lowest_at_s": 21.0}
    for stage in document["stages"]:
        for result in stage["results"]:
            result["power_max_w"] = watts
    return measured.parse(Result(0, json.dumps(document).encode()))


@pytest.mark.parametrize(
    ("volts", "watts", "verdict"),
    [
        ((12.06, 12.0, 11.94, 11.88, 11.8), 300.0, "warn"),
        ((12.06, 11.8), 300.0, "warn"),
        ((12.06, 12.0, 12.06, 12.0, 11.94), 300.0, "pass"),
        ((12.06, 12.0, 11.94, 11.88, 11.8), 360.0, "pass"),  # now it draws more, which explains a lower voltage
        ((None, 11.8), 300.0, "pass"),
        ((12.06, 11.8, 11.4), 300.0, "fail"),
    ],
)
def test_a_slow_fall_of_the_12_v_rail_is_a_warning(
    tmp_path: Path, volts: tuple[float | None, ...], watts: float, verdict: str
) -> None:
    """Its voltage under load fell over months before GPUs dropped out; each stress alone was above 11.5 V."""
    *earlier, now = volts
    assert measured.kept is not None
    with History.open(tmp_path / "history.sqlite") as past:
        for number, before in enumerate(earlier):
            past.record(run_of(number, {measured.name: measured.kept(at_12v(before, 300.0))}))
        figures_before = measured_before.recorded(past, past.named("servbadge"))
    store = FactStore()
    store.known[measured] = at_12v(now, watts)
    (finding,) = supplied(store, figures_before=figures_before)
    assert finding.verdict == verdict
    if verdict == "warn":
        assert finding.seen.startswith("12 V fell to 11.80 V")
        assert finding.expected == "about 12.06 V, as on 2026-11-21"
        shown = "12.06, 12.00, 11.94, 11.88, 11.80 V" if len(volts) == 5 else "12.06, 11.80 V"
        assert f"lowest of each stress: {shown}" in finding.seen
        assert "terminals" in finding.fix


def test_a_stress_that_was_recorded_before_volts_were_kept_is_still_read(tmp_path: Path) -> None:
    (old,) = kept()
    del old["lowest_12v"]
    with History.open(tmp_path / "history.sqlite") as past:
        past.record(run_of(0, {measured.name: [old]}))
        ((dated,),) = measured_before.recorded(past, past.named("servbadge")).values()
    assert (dated.figures.tflops["fp32"], dated.figures.lowest_12v) == (14.0, None)


def test_a_gpu_that_computed_nothing_alone_has_no_figures() -> None:
    case = case_named("facts", "stress.measured", "measured")["answer"]
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
    document = one_gpu()
    document["stages"][0]["results"][0]["products"][0]["reasons"] = reasons
    (found,) = figures(measured.parse(Result(0, json.dumps(document).encode())))
    assert found.slowed_by == slowed_by


def p2p_kept(quick: bool = False, **of_pair: Any) -> Any:
    """Returns what the history keeps of a peer-to-peer test of two GPUs; `of_pair` replaces results of the second
    direction."""
    document = json.loads((CASES / "p2p/pair.json").read_text()) | {"quick": quick}
    there = document["pairs"][0]
    back = there | {"from": 1, "to": 0} | {name: values and there[name] | values for name, values in of_pair.items()}
    document["pairs"] = [there, back]
    assert nccl.tested.kept is not None
    return nccl.tested.kept(nccl.tested.parse(Result(0, json.dumps(document).encode())))


GPUS = ("GPU-531aad71-f770-5c03-820a-409c03f38c12", "GPU-20496e00-b748-56c1-99c2-baae072e792e")


def test_the_slower_direction_of_a_pair_is_kept() -> None:
    (full,) = p2p_kept(collective={"gb_s": 30.5}, bytes={"gb_s": None, "round_gb_s": 31.0})
    assert (full["gpus"], full["nccl_gb_s"], full["copy_gb_s"], full["driver"]) == (GPUS, 30.5, 31.0, "535.261.03")
    (wrong,) = p2p_kept(collective={"ok": False, "outcome": "wrong data"}, bytes={"ok": None, "outcome": "refused"})
    assert (wrong["nccl_gb_s"], wrong["copy_gb_s"]) == (0.0, 7.678), "copies go through the host"
    (without,) = p2p_kept(collective=None)
    assert without["nccl_gb_s"] is None
    assert p2p_kept(quick=True) == []


def test_the_newest_figures_of_each_pair_come_back(tmp_path: Path) -> None:
    values = (p2p_kept(), p2p_kept(collective={"gb_s": 30.5}), [], [{"gpus": ["GPU-0"]}])
    with History.open(tmp_path / "history.sqlite") as past:
        for number, value in enumerate(values):
            past.record(run_of(number, {nccl.tested.name: json.loads(json.dumps(value))}))
        machine = past.named("servbadge")
        pairs = measured_before.pairs(past, machine)
        assert {gpus: pair.figures.nccl_gb_s for gpus, pair in pairs.items()} == {frozenset(GPUS): 30.5}
        assert measured_before.pairs(past, None) == {}
        changes = past.changed(machine or 0, NOON - datetime.timedelta(days=1))
    assert nccl.tested.name in differences.MEASURED
    assert [one for one in changes if one.subject.startswith(nccl.tested.name)] == [], "figures always differ"
