"""Faults of pairs are counted by the GPU that they have in common, or by the pairs that are connected."""

from __future__ import annotations

from itertools import combinations

import pytest

from rigwright.checks._common_gpu import common_gpus, faults


@pytest.mark.parametrize(
    ("gpus", "bad", "common", "number"),
    [
        ("ab", "ab", "", 1),
        ("abcd", "", "", 0),
        ("abcd", "ab", "", 1),
        ("abcd", "ab cd", "", 2),
        ("abcd", "ab ad", "", 1),
        ("abcd", "ab ac ad", "a", 1),
        ("abcd", "ab bc bd ad cd", "bd", 2),
        ("abcd", "ab ac ad bc bd cd", "", 1),
    ],
)
def test_faults_of_pairs(gpus: str, bad: str, common: str, number: int) -> None:
    every, pairs = [frozenset(pair) for pair in combinations(gpus, 2)], [frozenset(pair) for pair in bad.split()]
    assert common_gpus(pairs, every) == tuple(common)
    assert len({*faults(pairs, every).values()}) == number
    assert {*faults(pairs, every)} == {*pairs}
