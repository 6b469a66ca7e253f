"""Results that hosts share: of the same step with the same facts, and of no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from rigwright import operations
from rigwright.core import features
from rigwright.core.change import Change, Note
from rigwright.core.command import Result, command
from rigwright.engine import plan, plugins
from rigwright.engine.playbook import Step
from rigwright.engine.shared_results import MOST, SharedResults
from rigwright.facts import Fact, Facts, FactStore, Missing
from rigwright.operations import Declaration
from tests.paths import files

SIZE = Fact("t.size", command("size"), lambda result: result.text)
NAME = Fact("t.name", command("name"), lambda result: result.text)
BIG, SMALL = "big " * 3, "small " * 3


def of(size: str, name: str) -> FactStore:
    return FactStore({SIZE: size, NAME: name})


def test_the_same_facts_are_used_once() -> None:
    results, made = SharedResults(), []

    def make(facts: Facts) -> str:
        made.append(facts(SIZE))
        return f"a plan for {facts(SIZE)}"

    step = object()
    assert [results.of(step, of(size, str(number)), make) for number, size in enumerate((BIG, BIG, SMALL, BIG))] == [
        f"a plan for {BIG}", f"a plan for {BIG}", f"a plan for {SMALL}", f"a plan for {BIG}",
    ]  # fmt: skip
    assert made == [BIG, SMALL]
    results.of(object(), of(BIG, ""), make)
    assert made == [BIG, SMALL, BIG], "another step has results of its own"


def test_equal_facts_that_are_other_objects_and_facts_that_are_missing_are_not_shared() -> None:
    results, step = SharedResults(), object()
    first = results.of(step, of("".join(["a", "b"]), ""), lambda facts: [facts(SIZE)])
    second = results.of(step, of("".join(["a", "b"]), ""), lambda facts: [facts(SIZE)])
    assert first == second
    assert first is not second
    with pytest.raises(Missing):
        results.of(step, FactStore(), lambda facts: facts.all(SIZE, NAME))


def test_few_results_are_kept() -> None:
    results, step, made = SharedResults(), object(), []

    def make(facts: Facts) -> str:
        made.append(facts(SIZE))
        return str(facts(SIZE))

    sizes = [f"size {number}" for number in range(MOST + 1)]
    for size in (*sizes, sizes[0]):
        results.of(step, of(size, ""), make)
    assert made == [*sizes, sizes[0]]


def _planned(step: Step, results: SharedResults, size: str) -> plan.PlannedStep:
    store = FactStore()

    def read(facts: Any) -> None:
        store.known.update(dict.fromkeys(facts, size))

    return plan.plan_steps((step,), store, read, results)[0]


def test_plans_of_equal_hosts_are_one_object_and_failed_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def grown(facts: Facts) -> Iterator[Change | Note]:
        if facts(SIZE) == SMALL:
            raise ValueError
        yield Change("add", "size", "", "bigger", (command("grow"),))

    step, results = Step("Grown", "t.grown", grown, {}, "play.yml:1"), SharedResults()
    assert _planned(step, results, BIG) is _planned(step, results, BIG)
    monkeypatch.setattr("rigwright.operations.declared", lambda _name: Declaration(momentary=True))
    momentary = Step("Grown", "t.grown", grown, {}, "play.yml:1")
    assert _planned(momentary, results, BIG) is not _planned(momentary, results, BIG)


def test_an_operation_that_reads_the_clock_declares_it() -> None:
    """And a check does not read it, but one that is given something of the host, whose findings are not shared."""
    reads = re.compile(r"time\.time\(|\.today\(|\.now\(datetime|datetime\.now\(|os\.environ|random\.")
    for file in files("rigwright/operations/*.py", "rigwright/features/*/operations.py"):
        if reads.search(file.read_text()):
            package = file.parent.name
            prefix = file.stem if package == "operations" else features.prefix(f"rigwright.features.{package}")
            names = [name for name in plugins.known("operations") if name.startswith(f"{prefix}.")]
            assert any((found := operations.declared(name)) and found.momentary for name in names), file
    once_per_host = {"own_past.py", "accepted.py"}
    for file in files("rigwright/checks/*.py", "rigwright/features/*/checks.py"):
        assert not reads.search(file.read_text()) or file.name in once_per_host, file


def test_facts_of_a_store_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from rigwright import facts as facts_package
    from rigwright.facts.repeated_answers import RepeatedAnswers

    monkeypatch.setattr(facts_package, "_answers", RepeatedAnswers())
    parsed: list[bytes] = []

    def parse(result: Result) -> tuple[str, ...]:
        parsed.append(result.stdout)
        return tuple(result.lines)

    fact = Fact("t.lines", command("lines"), parse)
    values = []
    for _ in range(4):
        store = FactStore()
        store.learn([(fact, Result(0, b"one\ntwo\n"))])
        values.append(store(fact))
    assert len(parsed) == 2, "an answer is kept when it comes a second time"
    assert values[1] is values[2] is values[3]


def test_what_a_step_lacks_is_found_once_for_the_same_facts() -> None:
    results, step = SharedResults(), object()
    made: list[None] = []

    def make(facts: Facts) -> str:
        made.append(None)
        return str(facts.all(NAME)) if facts(SIZE) == BIG else str(facts(SIZE))

    def lacks(store: FactStore) -> tuple[Fact[Any], ...]:
        with pytest.raises(Missing) as raised:
            results.of(step, store, make)
        return raised.value.facts

    assert [lacks(FactStore()) for _ in range(2)] == [(SIZE,), (SIZE,)]
    assert [lacks(FactStore({SIZE: BIG})) for _ in range(2)] == [(NAME,), (NAME,)]
    assert len(made) == 2
    assert results.of(step, FactStore({SIZE: SMALL}), make) == SMALL, "it lacks nothing more"
    assert results.of(step, of(BIG, "a"), make) == str(("a",))
    assert lacks(FactStore()) == (SIZE,)
    assert len(made) == 4


def test_facts_that_differ_are_compared_first() -> None:
    results, step = SharedResults(), object()

    def make(facts: Facts) -> str:
        return str(facts.all(SIZE, NAME))

    for name in ("a", "b", "c"):
        assert results.of(step, of(BIG, name), make) == str((BIG, name))
    assert results.of(step, of(BIG, "c"), make) == str((BIG, "c"))
    assert results._known[id(step)][0].seen[0][0] == NAME
    assert results.of(step, of(SMALL, "c"), make) == str((SMALL, "c"))
