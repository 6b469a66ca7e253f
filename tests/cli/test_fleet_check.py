"""The limits that fleet.check compares GPUs with, read from a plan."""

from __future__ import annotations

import pytest

from rigwright.cli.fleet_check import held
from rigwright.core.desired import GpuLimits, Limits
from rigwright.engine.plan import PlannedStep, Status
from rigwright.engine.playbook import Step
from rigwright.operations import limits

ONE = {"GPU-a1": GpuLimits(power_limit_w=200)}


def planned(operation: str, status: Status, **parameters: object) -> PlannedStep:
    """Returns a step with the status that it has in the plan."""
    return PlannedStep(Step("S", operation, limits.applied, parameters, "play.yml:1"), status)


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


def test_a_host_without_limits_holds_nothing() -> None:
    """The step is skipped and has no parameters."""
    step = Step("S", "limits.applied", limits.applied, {}, "play.yml:1", "when: limits is defined")
    assert held([PlannedStep(step, "skipped")]) == set()
