"""Consequences: every name is known, none is its own cause, and mistakes are named by line."""

from __future__ import annotations

import graphlib

import pytest

from rigwright import catalogue
from rigwright.catalogue.consequences import check_consequences, consequences, follows


def test_every_name_is_a_symptom_or_an_xid() -> None:
    check_consequences()


@pytest.mark.parametrize("key", list(consequences()))
def test_every_consequence_has_causes_and_a_source(key: str) -> None:
    assert consequences()[key].after
    assert consequences()[key].source.strip()


def test_nothing_follows_from_itself() -> None:
    names = [*catalogue.all_symptoms(), *(f"Xid {code}" for code in catalogue.xids())]
    graph = {effect: {cause for cause in names if follows(effect, cause)} for effect in consequences()}
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("effect", "cause", "expected"),
    [
        ("nccl.timeout", "gpu.off_bus", True),
        ("nccl.timeout", "ecc.uncorrectable", True),
        ("nccl.timeout", "driver.mismatch", False),
        ("gpu.off_bus", "nccl.timeout", False),
        ("Xid 45", "Xid 31", True),
        ("Xid 45", "Xid 3", False),
        ("disk.full", "gpu.off_bus", False),
    ],
)
def test_follows(effect: str, cause: str, expected: bool) -> None:
    assert follows(effect, cause) is expected
