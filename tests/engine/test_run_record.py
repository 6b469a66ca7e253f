"""What a run records on a host is recorded in the script of its first change, once; that it ended, with the release of
the lease."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rigwright.core.change import Change
from rigwright.core.command import Command, Result, command
from rigwright.core.errors import UsageError
from rigwright.engine import plugins, rollback
from rigwright.engine.apply import apply
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import BoundPlaybook, Step
from rigwright.facts import Fact, Unreadable, parsed, run_record
from rigwright.inventory.model import Host
from rigwright.operations._run_recording import RECORD
from tests.host_runs import host_run

HOST = Host("box", (), {})
CHANGES = {
    "First": Change("run", "one", commands=(command("change-one"),), units=("one.service",)),
    "Second": Change("run", "two", commands=(command("change-two"),)),
}


def _ran(failing: str = "") -> list[str]:
    """The commands of a run with two steps in their order; `failing` is one that fails."""
    ran: list[str] = []
    made: set[str] = set()

    def answer(cmd: Command) -> Result:
        text = str(cmd)
        names = {
            "RECORD": cmd.argv[2:3] == (RECORD,),
            "units": "own-units" in text and "one.service" in text,
            "done": "record/done" in text,
            "release": "for kind in record other" in text,
        }
        ran.extend(name for name, true in names.items() if true)
        if text.startswith("change-"):
            ran.append(text)
            made.add(text)
        return Result(1 if failing and failing in (*[n for n, true in names.items() if true], text) else 0, b"")

    plugins.known("operations")

    def step(name: str, change: Change) -> Step:
        def function(_facts: Any) -> Iterator[Change]:
            if str(change.commands[0]) not in made:
                yield change

        return Step(name, "file.present", function, {}, f"play.yml:{name}")

    steps = tuple(step(name, change) for name, change in CHANGES.items())
    run = host_run(answer, bound=BoundPlaybook(Host("h", (), {}), steps, ()))
    preview = [PlannedStep(each, "pending", (CHANGES[each.name],)) for each in steps]
    assert (apply(run, preview).error is None) == (not failing)
    return ran


def test_the_record_is_made_before_the_first_change_only_and_a_run_that_stopped_has_not_ended() -> None:
    assert _ran() == ["RECORD", "units", "change-one", "change-two", "done", "release"]
    assert _ran("change-two") == ["RECORD", "units", "change-one", "change-two", "release"]
    assert "change-one" not in _ran("RECORD"), "nothing is changed on a host that cannot be recorded"


def test_the_aim_is_that_of_each_step_that_has_one() -> None:
    known = plugins.known("operations")
    steps = tuple(Step(name, name, known[name], {}, name) for name in ("rollback.files", "apt.clean"))
    bound = rollback.with_aim(BoundPlaybook(HOST, steps, ()), "20261122-1")
    assert [dict(step.parameters) for step in bound.steps] == [{"to": "20261122-1"}, {}]


@pytest.mark.parametrize("to", ["../../etc", "x y", "$(reboot)", "a\nb", "-o"])
def test_an_aim_that_is_no_run(to: str) -> None:
    with pytest.raises(UsageError, match="is no id of a run"):
        rollback.with_aim(BoundPlaybook(HOST, (), ()), to)


@pytest.mark.parametrize(
    "to", ["yesterday", "last", "../../etc", "$(reboot)", "a\nb", "-", "2026-11-22", "20261122-141753-136g",
           "20261122-141753-136a7c05a",
           "20261122-141753-136a\n", "٢٠٢٦"]
)  # fmt: skip
def test_a_text_that_cannot_be_a_run_is_refused_with_the_command_that_lists_them(to: str) -> None:
    with pytest.raises(UsageError, match="is no id of a run") as caught:
        rollback.require_run(to, "frame")
    assert caught.value.fix == "invoke rollback --host frame --list shows the runs that it remembers"


@pytest.mark.parametrize(
    ("fact", "line", "more"),
    [
        (run_record.runs, "run\tr{}", "201 runs, not up to 200"),
        (run_record.written(1), "wrote\tr\tabsent\t-\t-\t-\t/{}", "2001 files, not up to 2000"),
        (run_record.packages("r", 1), "package\tp{}\t1\tinstalled\t2\tinstalled\t00001", "packages, not up to 5000"),
        (run_record.units("r", 1), "unit\tu{}\t\t\tactive loaded enabled", "201 units, not up to 200"),
    ],
    ids=["runs", "written", "packages", "units"],
)
def test_a_record_without_end_is_refused(fact: Fact[Any], line: str, more: str) -> None:
    """Hostile: each line would be a line of the plan."""
    most = {"runs": 201, "written": 2001, "packages": 5000, "units": 201}[fact.name.split(".")[1].split("(")[0]]
    text = "\n".join(["records x", *(line.format(number) for number in range(most)), ""])
    found = parsed(fact, Result(0, f"{text}others\t0\n".encode() if "packages" in fact.name else text.encode()))
    assert isinstance(found, Unreadable)
    assert more in str(found)
