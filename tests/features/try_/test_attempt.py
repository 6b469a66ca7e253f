"""Two measurements compare: what is a difference, what is noise, what decides."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rigwright.core.typed_json import typed
from rigwright.facts.plain import plain
from rigwright.features.try_.attempt import (
    FOLLOWS,
    KEEP_IF,
    LEAST_PERCENT,
    Attempt,
    Comparison,
    Judgement,
    Measurement,
    Verdict,
    compare,
    decide,
    row,
)

BASE = Measurement(
    "2026-11-22T19:28:27Z",
    {"driver": "535.261.03", "kernel command line": "ro"},
    16,
    rounds={
        "products": (90.0, 91.0, 92.0, 91.5),
        "all_reduce": (11.0, 11.1, 11.2, 11.0),
        "power": (800.0, 801.0, 802.0),
    },
)


@pytest.mark.parametrize(
    ("quantity", "before", "after", "judgement"),
    [
        ("products", (90, 91, 92, 92), (100, 101, 102, 102), "better"),
        ("products", (100, 101, 102, 102), (90, 91, 92, 92), "worse"),
        ("power", (100, 101, 102, 102), (90, 91, 92, 92), "lower"),
        ("temperature", (60, 60, 61, 61), (70, 71, 72, 72), "higher"),
        ("products", (90, 91, 92, 92), (92, 101, 102, 102), "noise"),  # one round lies among the others
        ("products", (100.0, 100.1, 100.2, 100.2), (101.0, 101.1, 101.2, 101.2), "noise"),  # within LEAST_PERCENT
        ("products", (90, 91, 92), (100, 101, 102), "unknown"),  # too few rounds
        ("products", (), (100, 101, 102, 103), "unknown"),
        ("products", (0, 0, 0, 0), (100, 101, 102, 103), "unknown"),
    ],
)
def test_a_quantity(quantity: str, before: tuple[float, ...], after: tuple[float, ...], judgement: Judgement) -> None:
    assert row(quantity, before, after).judgement == judgement


def test_the_numbers_of_a_row() -> None:
    one = row("products", (90, 91, 94), (100, 101, 102))
    assert (one.before, one.before_spread, one.after, one.after_spread) == (91, 2, 101, 1)
    assert one.percent == pytest.approx(10.989, abs=0.001)
    assert LEAST_PERCENT == 2


def _with(measured: Measurement, **rounds: tuple[float, ...]) -> Measurement:
    return replace(measured, rounds={**measured.rounds, **rounds})


FASTER = _with(BASE, products=(100.0, 101.0, 102.0, 101.0))
SLOWER = _with(BASE, all_reduce=(5.0, 5.1, 5.2, 5.0))
HANGS = replace(BASE, passed=10, failures={"GPU 0 to 1, copy": "hang", "NCCL all-reduce": "hang"})
VERDICTS: list[tuple[Measurement, Measurement, Verdict]] = [
    (BASE, BASE, "same"),
    (BASE, _with(BASE, power=(900.0, 901.0, 902.0, 901.0)), "same"),
    (BASE, FASTER, "faster"),
    (BASE, SLOWER, "slower"),
    (BASE, _with(SLOWER, products=FASTER.rounds["products"]), "mixed"),
    (BASE, HANGS, "refused"),
    (BASE, replace(FASTER, wrong={"gpu.present GPUs": "2 of 3"}), "refused"),
    (BASE, replace(FASTER, missing={"load": "not done within 420 s"}), "refused"),
    (HANGS, BASE, "faster"),
    (HANGS, SLOWER, "mixed"),
    (HANGS, HANGS, "same"),
]


@pytest.mark.parametrize(("before", "after", "verdict"), VERDICTS)
def test_the_verdict(before: Measurement, after: Measurement, verdict: Verdict) -> None:
    assert compare(before, after).verdict == verdict


KEPT: dict[Verdict, dict[str, bool | None]] = {
    "faster": {"faster": True, "no-slower": True, "ask": None, "never": False},
    "same": {"faster": False, "no-slower": True, "ask": None, "never": False},
    "slower": {"faster": False, "no-slower": False, "ask": None, "never": False},
    "mixed": {"faster": False, "no-slower": False, "ask": None, "never": False},
    "refused": dict.fromkeys(KEEP_IF, False),
}


@pytest.mark.parametrize("verdict", KEPT)
def test_what_is_kept(verdict: Verdict) -> None:
    comparison = Comparison((), (), ("it hangs",) if verdict == "refused" else (), (), verdict)
    assert {word: decide(comparison, word)[0] for word in KEEP_IF} == KEPT[verdict]


def test_what_differs_and_what_fails_is_named() -> None:
    after = replace(HANGS, conditions={"driver": "580.178.04", "kernel": "6.8"})
    found = compare(BASE, after)
    assert [(one.name, one.before, one.after) for one in found.differs] == [
        ("driver", "535.261.03", "580.178.04"), ("kernel command line", "ro", ""), ("kernel", "", "6.8"),
    ]  # fmt: skip
    assert found.broken == ("peer-to-peer test: hang: GPU 0 to 1, copy; NCCL all-reduce",)
    assert compare(after, BASE).repaired == found.broken


def test_what_follows_from_a_hang_is_not_told_again() -> None:
    after = replace(
        HANGS, failures={**HANGS.failures, "GPU 1 to 0, copy": "not run"}, missing={"load: copies": FOLLOWS},
        wrong={"p2p.copies PCIE-1 to PCIE-2": "hangs", "gpu.present GPUs": "2 of 3"},
    )  # fmt: skip
    assert compare(BASE, after).broken == (
        "peer-to-peer test: hang: GPU 0 to 1, copy; NCCL all-reduce",
        "gpu.present GPUs: 2 of 3",
    )
    assert compare(BASE, replace(BASE, failures={"GPU 1 to 0, copy": "not run"})).verdict == "refused"


@pytest.mark.parametrize(
    ("tried", "stands"),
    [
        (Attempt(before=BASE), BASE),
        (Attempt(before=BASE, after=FASTER), FASTER),  # compare with an earlier run
        (Attempt("driver: 580", before=BASE, after=FASTER, decision="kept"), FASTER),
        (Attempt("driver: 580", before=BASE, after=FASTER, decision="back"), BASE),
        (Attempt("driver: 580", before=BASE, after=FASTER, decision="left"), None),
    ],
)
def test_the_measurement_of_the_state_that_a_run_left(tried: Attempt, stands: Measurement | None) -> None:
    assert tried.stands == stands


def test_it_survives_the_history() -> None:
    tried = Attempt("driver: 580", "note", BASE, HANGS, "run", compare(BASE, HANGS), "", "back", "it hangs")
    assert typed(plain(tried), Attempt) == tried
