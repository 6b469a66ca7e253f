"""RIGWRIGHT_ORDER_SEED: the tests of a run in a random order, which a seed repeats."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any

from tests.conftest import in_random_order

TESTS: list[Any] = [
    SimpleNamespace(nodeid=f"tests/{file}.py::test_{number}") for file in "abcde" for number in range(9)
]


def test_files_stay_together_and_a_seed_gives_the_same_order_again() -> None:
    first, again, other = (in_random_order(TESTS, seed) for seed in ("7", "7", "8"))
    assert first == again
    assert first not in (TESTS, other)
    for order in (first, other):
        assert sorted(order, key=TESTS.index) == TESTS
        files = [file for file, _ in groupby(order, key=lambda test: test.nodeid.partition("::")[0])]
        assert len(files) == 5
        assert files != sorted(files), "files too"
