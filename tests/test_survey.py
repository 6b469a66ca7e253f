"""What GPUs are held to, as fleet.check reads it from a plan."""

from __future__ import annotations

import pytest

from rigwright.operations import limits
from rigwright.plan import Planned, Status
from rigwright.playbook import Step
from rigwright.survey import held
from rigwright.wanted import GpuLimits, Limits

ONE = {"GPU-a1": GpuLimits(power_limit_w=200)}


def planned(operation: str, status: Status, **parameters: object) -> Planned:
    """A step as the plan has it."""
    return Planned(Step("S", operation, limits.applied, parameters, "play.yml:1"), status)


@pytest.mark.parametrize(
    ("status", "wanted", "names"),
    [
        ("ok", Limits(persistence=True, power_limit_w=200), {"persistence", "power_limit_w"}),
        ("ok", Limits(persistence=False, gpus=ONE), {"persistence", "power_limit_w"}),
        ("ok", Limits(), set()),
        ("pending", Limits(persistence=True), {"persistence"}),
    ],
)
def test_held(status: Status, wanted: Limits, names: set[str]) -> None:
    assert held([planned("limits.applied", status, limits=wanted)]) == names


def test_other_steps_hold_nothing() -> None:
    assert held([planned("limits.boot", "ok", limits=Limits(persistence=True))]) == set()
