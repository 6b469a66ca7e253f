"""A plan that reboots a host which could not be reached after that is refused; one that does not reboot it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rigwright.core.change import Change, Note
from rigwright.core.command import Result
from rigwright.engine.plan import PlannedStep, plan_steps
from rigwright.engine.playbook import Step
from rigwright.facts import Fact, FactStore, parsed
from rigwright.facts.boot import next_boot
from rigwright.operations import operation

LEADS = Change("change", "driver", "535", "550", leads_to="reboot")
REBOOT = Change("run", "reboot", "driver none is loaded", "a boot with it", reboot=True)
OTHER = Change("add", "/etc/motd")


@operation(reboots=True)
def rebooted(_facts: Any) -> Iterator[Change | Note]:
    """Stands for the step Reboot."""
    yield from ()


NAME = f"{rebooted.__module__.rpartition('.')[2]}.rebooted"


def step(*changes: Change, operation: str = "a.b", skipped: str = "") -> Step:
    """Returns a step that wants these changes."""
    return Step(f"{operation} {len(changes)}", operation, lambda _facts: iter(changes), {}, "play.yml:1", skipped)


def host(**said: str) -> str:
    """Returns the answer of a host of which these rows have something to say."""
    return "".join(
        f"== {row.subject}\n"
        + "".join(f" {line}\n" for line in said.get(row.subject.split()[0].lstrip("/"), "").split("\n"))
        for row in next_boot.ROWS
    )


BROKEN, MISSING = host(sudo="x:1:17: syntax error\nexit 1"), host(sudo="missing /usr/sbin/visudo")


def planned(steps: Sequence[Step], answer: str) -> tuple[tuple[PlannedStep, ...], list[Fact[Any]]]:
    """Returns the plan of the steps on a host with this answer, and the facts that were read."""
    store, asked = FactStore(), []

    def read(facts: Sequence[Fact[Any]]) -> None:
        asked.extend(facts)
        store.known |= {fact: parsed(fact, Result(0, answer.encode())) for fact in facts}

    return plan_steps(steps, store, read), asked


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        ([step(REBOOT)], 0),
        ([step(OTHER), step(LEADS), step(REBOOT, operation=NAME)], 2),
        ([step(LEADS), step(OTHER), step(operation=NAME)], 2),
    ],
    ids=["a reboot", "a reboot that a change leads to", "a reboot that is due only after a change"],
)
def test_a_fault_refuses_the_reboot(steps: list[Step], refused: int) -> None:
    found, _ = planned(steps, BROKEN)
    assert [number for number, each in enumerate(found) if each.status == "failed"] == [refused]
    error = found[refused].error
    assert error
    assert error.found == "the host could not be reached after a boot: sudo: visudo -c: x:1:17: syntax error"
    assert error.fix == "sudo visudo -c, until it finds no error; then run the same command again"
    assert error.expected == "rules that sudo reads, on a disk"


@pytest.mark.parametrize(
    "steps",
    [
        [step(OTHER), step(operation=NAME)],
        [step(LEADS)],
        [step(LEADS), step(operation=NAME, skipped="the tags leave it out")],
        [step(operation=NAME), step(LEADS)],
    ],
    ids=["no reboot", "no step that reboots", "a step that is left out", "a step that came before"],
)
def test_a_plan_without_a_reboot_of_ours_does_not_ask(steps: list[Step]) -> None:
    found, asked = planned(steps, BROKEN)
    assert all(each.error is None for each in found)
    assert asked == []


@pytest.mark.parametrize(
    ("answer", "why"), [(MISSING, "sudo (/usr/sbin/visudo is not there)"), ("what?", "cannot read 'what?'")]
)
def test_what_is_not_known_is_a_warning(answer: str, why: str) -> None:
    found, _ = planned([step(REBOOT)], answer)
    assert found[0].status == "pending"
    assert [(note.warn, note.text.startswith("not known"), why in note.text) for note in found[0].notes] == [
        (True, True, True)
    ]


def test_a_host_that_comes_back_is_rebooted() -> None:
    found, asked = planned([step(REBOOT)], host(sudo="exit 0"))
    assert (found[0].status, found[0].notes, asked) == ("pending", (), [next_boot.conditions])
