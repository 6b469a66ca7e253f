"""What the error of a step says that stopped a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rigwright.core.change import Change
from rigwright.core.command import Command, Result, command
from rigwright.core.errors import Unreachable
from rigwright.engine import plugins, run_record
from rigwright.engine.apply import apply
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import BoundPlaybook, Step
from rigwright.facts import own_programs
from tests.engine.test_required_test import HOST, Machine
from tests.ssh.fake_transport import FakeTransport


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
    run.bound = BoundPlaybook(HOST, (step,), ())
    error = apply(run, (PlannedStep(step, "pending", (change,)),)).error
    assert error is not None
    assert error.found == "the connection was lost; it was at the step 'Room'"


def test_a_host_that_is_lost_before_the_run_is_recorded_as_done_is_an_error(tmp_path: Path) -> None:
    """The lease is still there, and a rollback is not recorded as done: the same command finishes that."""
    run = Machine(tmp_path / "rigwright").run()
    real = run.transport.run

    def lost(commands: Any, **how: Any) -> Any:
        if run_record.done() in commands:
            raise Unreachable("box", "the connection was lost")
        return real(commands, **how)

    run.transport.run = lost  # type: ignore[method-assign]
    error = apply(run, ()).error
    assert error is not None
    assert error.found == "the connection was lost"


def test_a_job_of_a_killed_run_is_named_and_waited_for(tmp_path: Path) -> None:
    """Its lines are shown, and it is looked for in the folder of its own run."""
    words = own_programs.description("step Driver installed", "20261126-1403 ada@desk-2c.40 4711 99 box 3")
    shown = f"Id=rigwright-job-driver-installed-0.service\nSubState=running\nDescription={words}; 20\n\nup 80\n"
    machine, said, looked = Machine(tmp_path / "rigwright"), list[str](), list[str]()

    def answer(cmd: Command) -> Result:
        if cmd == own_programs.at_work.command:
            return Result(0, shown.encode())
        if len(cmd.argv) > 4 and "/watched" in cmd.argv[2]:
            looked.append(cmd.argv[4])
            return Result(0, b"0 b00t b00t kept 2026-11-26 14:00:00 UTC\n" + b"Unpacking dkms\n" * (len(looked) == 1))
        return machine.answer(cmd)

    run = machine.run()
    run.transport = FakeTransport(answer)  # type: ignore[assignment]
    run.tell = lambda event: said.append(str(getattr(event, "text", getattr(event, "line", ""))))
    assert apply(run, ()).error is None
    assert re.fullmatch(
        r"waits for the step Driver installed of \d\d:\d\d \(run 20261126-1403 by ada@desk\), "
        r"which ends when its work is done",
        next(text for text in said if text.startswith("waits")),
    )
    assert "Unpacking dkms" in said
    assert set(looked) == {"/var/lib/rigwright/runs/20261126-1403/rigwright-job-driver-installed-0"}


@pytest.mark.parametrize(
    ("shown", "announced", "refused"),
    [(True, None, False), (False, None, True), (True, (), True), (False, ("Driver",), False)],
    ids=["in the plan", "not in the plan", "in the plan, which nobody saw", "in the plan that a person saw"],
)
def test_a_disruption_that_nobody_was_shown_needs_a_yes(
    tmp_path: Path, shown: bool, announced: tuple[str, ...] | None, refused: bool
) -> None:
    change = Change("change", "driver", "535", "580", (command("make-it"),), disruptive=True)
    plugins.known("operations")
    step = Step(
        "Driver", "file.present", lambda _facts: iter(() if (tmp_path / "made").exists() else (change,)), {}, ""
    )
    run = Machine(tmp_path / "rigwright").run()
    run.options = replace(run.options, disrupt=False, announced=None if announced is None else {"h": announced})
    real = run.transport.run

    def made(commands: Any, **how: Any) -> Any:
        if any("make-it" in str(cmd) for cmd in commands):
            (tmp_path / "made").touch()
        return real(commands, **how)

    run.transport.run = made  # type: ignore[method-assign]
    planned = replace(change, disruptive=shown)
    run.bound = BoundPlaybook(HOST, (step,), ())
    error = apply(run, (PlannedStep(step, "pending", (planned,)),)).error
    assert (error is not None and "driver was not announced (535)" in error.found) == refused, error
    assert (tmp_path / "made").exists() == (not refused)
