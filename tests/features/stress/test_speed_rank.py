"""The rank of a fleet's GPUs by their measured speed, and what it says to do."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest
from msgspec.structs import replace

from rigwright.engine.machine import MeasuredGpu
from rigwright.features.stress import speed_rank

CARD = MeasuredGpu(
    "0000:06:00.0", "GPU-0", "SXM2-1", "Tesla V100-SXM2-16GB", "2026-05-12T10:00:00+00:00", "r1", 200.0, "535.161.08",
    {"fp32": 13.0, "fp16": 95.0}, {"fp32": 0.83, "fp16": 0.76}, {"fp32": 0.95, "fp16": 0.9}, slowed_by="power limit",
)  # fmt: skip


def slower(by: float, **more: Any) -> MeasuredGpu:
    """Returns the card, slower by a share in all kinds."""
    values = {
        name: {kind: value * (1 - by) for kind, value in getattr(CARD, name).items()}
        for name in ("tflops", "shares", "clock_shares")
    }
    return replace(CARD, **{**values, **more})


@pytest.mark.parametrize(
    ("card", "cause", "todo", "wrong"),
    [
        (CARD, "its power limit of 200 W", "invoke limits.find --host a measures", False),
        (replace(CARD, slowed_by="", power_limit_w=300.0), "", "", False),
        (replace(CARD, slowed_by="application clocks"), "its clocks are set lower", "invoke limits --host a --show",
         False),
        (replace(CARD, slowed_by="heat, by the driver"), "heat", "its cooler", True),
        (replace(CARD, slowed_by="power brake"), "the power supply or the board brakes it",
         "invoke explain power.brake", True),
        (slower(0.04), "its power limit of 200 W", "limits.find", False),
        (slower(0.06), "6% slower than 2 other GPUs of its model at the same power limit", "swap it with a faster one",
         True),
        (slower(0.06, slowed_by="heat, by the hardware"), "6% slower than 2 other GPUs", "its cooler", True),
        (slower(0.06, power_limit_w=150.0), "its power limit of 150 W", "limits.find", False),
        (slower(0.06, driver="550.54.15"), "its power limit", "limits.find", False),
        (slower(0.06, model="another"), "its power limit", "limits.find", False),
        (slower(0.5, power_limit_w=None), "45% of its model's figure at its clock",
         "invoke try --host a --driver BRANCH", True),
    ],
)  # fmt: skip
def test_what_to_do_about_a_card(card: MeasuredGpu, cause: str, todo: str, wrong: bool) -> None:
    ranked = speed_rank.gpus({"a": [card], "b": [CARD, CARD]})
    one = next(each for each in ranked if each.host == "a")
    assert (one.kind, one.wrong) == ("fp16", wrong)
    assert one.cause.startswith(cause)
    assert bool(one.cause) == bool(cause)
    assert todo in one.todo
    assert bool(one.todo) == bool(todo)


def test_the_slowest_come_first_and_those_alike_are_one_entry() -> None:
    first, second = slower(0.2, position="SXM2-4"), replace(CARD, position="SXM2-2")
    unknown = replace(CARD, shares={}, model="NVIDIA T600")
    ranked = speed_rank.gpus({"b": [CARD, second, first, unknown], "a": [CARD]})
    assert [(one.host, one.gpu.position) for one in ranked] == [("b", "SXM2-4"), ("a", "SXM2-1"), ("b", "SXM2-1"),
        ("b", "SXM2-2")]  # fmt: skip
    found = speed_rank.entries(ranked)
    assert [(one.first.host, one.places, one.shares) for one in found] == [
        ("b", "SXM2-4", "61%"),
        ("a", "SXM2-1", "76%"),
        ("b", "SXM2-1, SXM2-2", "76%"),
    ]
    machines = speed_rank.machines(ranked)
    assert [(one.host, round(one.slowest, 2), round(one.mean, 3), one.gpus) for one in machines] == [
        ("b", 0.61, 0.709, 3),
        ("a", 0.76, 0.76, 1),
    ]
    assert speed_rank.without_figure({"b": [CARD, unknown]}) == ["NVIDIA T600"]


def test_only_what_is_to_be_mended_is_a_finding() -> None:
    slow = slower(0.2, position="SXM2-4", bus_id="0000:0b:00.0")
    (found,) = speed_rank.findings("a", [CARD, replace(CARD, uuid="GPU-1"), slow])
    assert (found.subject, found.verdict, found.source) == ("SXM2-4 0000:0b:00.0", "warn", "past")
    assert found.seen.startswith("61% of its model's figure in FP16 on 2026-05-12: 20% slower than 2 other GPUs")
    assert found.fix.startswith("swap it with a faster one, then invoke stress --host a again")


def test_many_gpus_are_compared_as_each_with_all_others() -> None:
    """The sorted rates give the same medians as a comparison of every pair."""
    chance = random.Random(3)
    gpus = [
        slower(chance.choice((0.0, 0.0, 0.01, 0.08, 0.2)), bus_id=f"{number}",
               driver=chance.choice(("535.1", "535.2", "580.1")),
               power_limit_w=chance.choice((200.0, 200.5, 250.0, None)))
        for number in range(60)
    ]  # fmt: skip
    peers = speed_rank._Peers(gpus)
    limits = {200.0: {200.0, 200.5}, 200.5: {200.0, 200.5}, 250.0: {250.0}, None: {None}}
    for gpu in gpus:
        alike = [
            one for one in gpus if one.driver[:3] == gpu.driver[:3] and one.power_limit_w in limits[gpu.power_limit_w]
        ]
        others = [one for one in alike if one is not gpu]
        assert peers.others(gpu) == len(others)
        for kind in gpu.tflops:
            rates = [each.tflops[kind] for each in others]
            assert peers.median(gpu, kind) == (statistics.median(rates) if rates else None)
    assert peers.median(gpus[0], "fp8") is None
