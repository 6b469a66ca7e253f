"""Support periods, case by case: tests/cases/lifecycle/ has a machine's facts, a date, and the expected end dates."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from rigwright import catalogue
from rigwright.catalogue.lifecycle import ends
from tests.paths import CASES

FILES = sorted((CASES / "lifecycle").glob("*.yml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_ends(path: Path) -> None:
    """Each end date has the values of the case, in this order, and a source; there is no other one."""
    case: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = ends(case["facts"], case["today"])
    assert [one.name for one in found] == [one["name"] for one in case["ends"]]
    for end, one in zip(found, case["ends"], strict=True):
        assert {key: getattr(end, key) for key in one} == one
        assert end.source


def test_nothing_of_a_host_that_told_nothing() -> None:
    assert ends({}, datetime.date(2026, 11, 21)) == ()
    assert ends({"system.os_release": None, "driver.loaded_version": None, "pci.gpus": None}, datetime.date.max) == ()


def test_the_dates_of_distributions_go_up() -> None:
    for name, one in catalogue.all_distributions().items():
        assert one.further is None or one.until < one.further, name
        assert bool(one.further) == bool(one.by), name
    for family in ("ubuntu", "debian"):
        lasting = [
            one.until for name, one in catalogue.all_distributions().items() if name.startswith(family) and one.by
        ]
        assert lasting == sorted(lasting)
