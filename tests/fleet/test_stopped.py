"""What is told of a host whose action Ctrl-C ended: done where no step was left, stopped where one was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from rigwright.core.errors import HostError
from rigwright.engine.plan import PlannedStep
from rigwright.engine.report import ApplyResult
from rigwright.fleet.host_job import _stopped
from rigwright.inventory.model import Host
from tests import reports
from tests.fleet.test_results import APPLIED, STEP

HOST = Host("gpu1", (), {})
JOB: Any = SimpleNamespace(left_in="", run=SimpleNamespace(rebooting=False), host=HOST)
OTHER = PlannedStep(replace(STEP, name="Other"), "pending")


@pytest.mark.parametrize(
    ("applied", "found"),
    [
        (APPLIED, ""),
        (replace(APPLIED, steps=(*APPLIED.steps, OTHER)), "stopped after some steps"),
        (replace(APPLIED, error=HostError("gpu1", "refused")), "stopped after some steps"),
        (ApplyResult((PlannedStep(STEP, "failed"),)), "stopped in the middle of"),
    ],
    ids=["all complete", "one left", "an error", "a failed step"],
)
def test_how_far_it_came(applied: ApplyResult, found: str) -> None:
    report = _stopped(JOB, reports.report(HOST, applied))
    assert str(report.error or "").find(found) >= 0
    assert (report.error is None) == (not found)
