"""Faults of pairs are counted by the GPU that they have in common, or by the pairs that are connected."""

from __future__ import annotations

from itertools import combinations

import pytest

from rigwright.checks._common_gpu import common_gpus, faults

FOUR = [frozenset(pair) for pair in combinations("abcd", 2)]


@pytest.mark.parametrize(
    ("bad", "common", "number"),
    [
        ("", "", 0),
        ("ab", "", 1),
        ("ab cd", "", 2),
        ("ab ad", "", 1),
        ("ab ac ad", "a", 1),
        ("ab bc bd ad cd", "bd", 2),
        ("ab ac ad bc bd cd", "", 1),
    ],
)
def test_four_gpus(bad: str, common: str, number: int) -> None:
    pairs = [frozenset(pair) for pair in bad.split()]
    assert common_gpus(pairs, FOUR) == tuple(common)
    assert len({*faults(pairs, FOUR).values()}) == number
    assert {*faults(pairs, FOUR)} == {*pairs}


def test_a_machine_of_one_pair() -> None:
    pair = frozenset("ab")
    assert common_gpus([pair], [pair]) == ()
    assert faults([pair], [pair]) == {pair: 0}
