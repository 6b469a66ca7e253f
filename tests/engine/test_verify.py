"""Checks are evaluated in rounds: each check completes once, and only missing facts are read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rigwright.checks import Finding
from rigwright.core.change import Change
from rigwright.core.command import Command, Result
from rigwright.engine.host_run import HostRun
from rigwright.engine.playbook import Check, Step
from rigwright.engine.verify import CheckEvaluation, left_at_work
from rigwright.facts import Fact, Facts, Unavailable, own_programs
from rigwright.facts.apt import dpkg
from tests.host_runs import host_run


def _text(result: Result) -> str:
    return result.text.strip()


def _no_driver(_result: Result) -> str:
    raise Unavailable("no driver")


FIRST = Fact("test.first", Command(("first",)), _text)
SECOND = Fact("test.second", Command(("second",)), _text)
THIRD = Fact("test.third", Command(("third",)), _text)
ABSENT = Fact("test.absent", Command(("absent",)), _no_driver)


def evaluation(calls: list[str]) -> tuple[CheckEvaluation, HostRun]:
    """Returns an evaluation of three checks that record their calls; the host answers each command with its name."""

    def short(facts: Facts) -> Iterator[Finding]:
        calls.append("short")
        yield Finding("short", "pass", facts(FIRST), check="t.short")

    def long(facts: Facts) -> Iterator[Finding]:
        calls.append("long")
        yield Finding("long", "pass", facts(FIRST) + facts(SECOND), check="t.long")

    def absent(facts: Facts) -> Iterator[Finding]:
        calls.append("absent")
        yield Finding("absent", "pass", facts(ABSENT), check="t.absent")

    checks = [Check(f.__name__, f"t.{f.__name__}", f, {}, "play.yml:1") for f in (long, short, absent)]
    run = host_run(lambda cmd: Result(0, f"{cmd.argv[0]}\n".encode()))
    return CheckEvaluation(run, checks), run


def test_a_check_that_has_ended_is_not_evaluated_again() -> None:
    calls: list[str] = []
    checks, run = evaluation(calls)
    found = checks.findings()
    assert [(one.check, one.verdict) for one in found] == [
        ("t.long", "pass"), ("t.short", "pass"), ("t.absent", "unknown"),
    ]  # fmt: skip
    assert calls == ["long", "short", "absent", "long", "short", "absent", "long"]
    assert run.transport.round_trips == 2


def test_the_first_facts_of_checks_come_with_others() -> None:
    checks, run = evaluation([])
    run.prefetch(checks.evaluate())
    run.read((SECOND,))
    assert len(checks.findings()) == 3
    assert run.transport.round_trips == 1


def test_the_facts_of_checks_come_with_each_round_of_the_plan() -> None:
    def operation(facts: Facts) -> Iterator[Change]:
        facts(FIRST)
        facts(THIRD)
        yield from ()

    checks, run = evaluation([])
    (planned,) = run.planned([Step("a step", "t.operation", operation, {}, "play.yml:1")], checks.evaluate)
    assert planned.status == "ok"
    assert {FIRST, SECOND, THIRD, ABSENT} <= {*run.store.known}
    assert len(checks.findings()) == 3
    assert run.transport.round_trips == 2


def test_prefetched_facts_are_read_once() -> None:
    _, run = evaluation([])
    run.prefetch((FIRST,))
    run.read((SECOND,))
    run.store.forget()
    run.read((SECOND,))
    assert FIRST not in run.store.known


def test_the_job_of_an_interrupted_run_is_named_first() -> None:
    shown = (
        "Id=rigwright-job-x-1.service\nSubState=running\n"
        f"Description={own_programs.description('step X', '1 ada@desk 7 8')}; 20"
    )
    answers = {
        dpkg.lock_holders.command: b"7 apt-get\n",
        own_programs.at_work.command: f"{shown}\n\nup 30\n".encode(),
    }
    run = host_run(lambda cmd: Result(0, answers.get(cmd, b"")))
    assert left_at_work(run) == (), "nothing is known of a lock"
    run.read((dpkg.lock_holders,))
    (finding,) = left_at_work(run)
    assert finding.verdict == "fail"
    assert re.fullmatch(
        r"at work is the step X of \d\d:\d\d \(run 1 by ada@desk\), which ends when its work is done", finding.seen
    )
    assert finding.fix == "invoke provision, which waits for it and then continues"
