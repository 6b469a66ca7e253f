"""Every way forward has its way back: provision then rollback, remove, remove --driver, rollback to each run, try."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.conftest import WORKER
from tests.end_to_end.plugs import state
from tests.end_to_end.way_back import GIVEN, ON_ONE_HOST, WAYS, host, write

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
SAMPLE = ("driver and CUDA, Ubuntu 22.04", "rollback")
"""What every run of the tests goes; `-m ways` goes all of them."""
ALL = [(given, way) for given in GIVEN for way in WAYS] + [("driver, Ubuntu 24.04", way) for way in ON_ONE_HOST]


@pytest.mark.parametrize(
    ("given", "way"), [pytest.param(*each, marks=() if each == SAMPLE else pytest.mark.ways) for each in ALL]
)
def test_a_host_is_as_before(lab_root: None, given: str, way: str, tmp_path: Path) -> None:  # noqa: ARG001
    name = f"t-ways{list(GIVEN).index(given)}{WORKER}"  # the history knows a machine by its name
    with host(name, GIVEN[given], tmp_path) as one:
        ends = "failed"
        try:
            before = one.state()
            {**WAYS, **ON_ONE_HOST}[way](one, before)
            ends = "same"
        finally:
            write(given, way, one.seconds, ends)


def test_the_sample_is_one_of_the_ways() -> None:
    assert SAMPLE in ALL
    assert state.VOLATILE
