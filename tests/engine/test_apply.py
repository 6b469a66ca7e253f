"""What the error of a step says that stopped a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rigwright.core.change import Change
from rigwright.core.command import command
from rigwright.core.errors import Unreachable
from rigwright.engine import plugins
from rigwright.engine.apply import apply
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import Step
from tests.engine.test_owed_test import Machine


def test_a_host_that_is_lost_during_a_step_is_reported_with_the_step(tmp_path: Path) -> None:
    change = Change("add", "room", commands=(command("make-room"),))
    plugins.known("operations")
    step = Step("Room", "file.present", lambda _facts: iter((change,)), {}, "play.yml:1")
    run = Machine(tmp_path / "rigwright").run()
    real = run.transport.run

    def lost(commands: Any, **how: Any) -> Any:
        if "make-room" in [str(cmd) for cmd in commands]:
            raise Unreachable("box", "the connection was lost")
        return real(commands, **how)

    run.transport.run = lost  # type: ignore[method-assign]
    error = apply(run, (step,), (PlannedStep(step, "pending", (change,)),)).error
    assert error is not None
    assert error.found == "the connection was lost; it was at the step 'Room'"
