"""Consequences: every name is known, none is its own cause, and mistakes are named by line."""

from __future__ import annotations

import graphlib
from pathlib import Path

import pytest

from rigwright import catalogue
from rigwright.catalogue import loader
from rigwright.catalogue.consequences import check_consequences, consequences, follows
from rigwright.core.errors import InputError


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


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("nccl.timeuot: {after: [gpu.off_bus], source: a}", "did you mean 'nccl.timeout'"),
        ("nccl.timeout: {after: [gpu.of_bus], source: a}", "did you mean 'gpu.off_bus'"),
        ("nccl.timeout: {after: [eccc.], source: a}", "'eccc.'"),
        ('"Xid 7": {after: [gpu.off_bus], source: a}', "'Xid 7'"),
        ("nccl.timeout: {after: [gpu.off_bus]}", "lacks source"),
    ],
)
def test_a_mistake_is_named_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, words: str) -> None:
    catalogue.all_symptoms(), catalogue.xids()
    (tmp_path / "consequences.yml").write_text(f"# a comment\nconsequences:\n  {row}\n", encoding="utf-8")
    monkeypatch.setattr(loader, "FOLDER", tmp_path)
    consequences.cache_clear()
    try:
        with pytest.raises(InputError) as caught:
            check_consequences()
    finally:
        consequences.cache_clear()
    assert caught.value.where == "catalogue/consequences.yml:3"
    assert words in str(caught.value)
