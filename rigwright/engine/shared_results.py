"""Results of operations and checks that hosts have in common: with the same parameters and the same facts a function
gives the same result.

Facts are the same if they are one object, as those of `facts/repeated_answers.py` are. Results are frozen, so hosts can
share them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

from rigwright.facts import UNKNOWN, Fact, Facts, FactStore, Missing, all_available, available

T = TypeVar("T")
R = TypeVar("R")

MOST = 4
"""The results that are kept of a step or check, the newest first, and as many sets of facts that it lacked."""
_Seen = tuple[tuple[Fact[Any], Any], ...]
"""The facts that a function asked for, with their values."""


class _Known(Struct, frozen=True):
    """A result for a step or check, and the facts that it was made of."""

    subject: object
    seen: _Seen
    result: Any


class SharedResults:
    """The results of the hosts of a run, and which facts steps and checks lacked. For use by all threads."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[_Known, ...]] = {}
        self._lacked: dict[int, tuple[_Known, ...]] = {}
        self._differ: set[Fact[Any]] = set()
        """Facts that are not the same for all hosts. They are compared first."""

    def of(
        self, subject: object, store: FactStore, make: Callable[[Facts], R], keep: Callable[[R], bool] = lambda _: True
    ) -> R:
        """The result of `make` for a step or check and the facts of a host, or its earlier result for the same facts.
        Raises what it raises.

        `subject`: the step or check, the same object for hosts with equal parameters. `keep`: whether a result may be
        used again. With the same values of the known facts, `make` lacks the same facts again.
        """
        if same := self._same(self._lacked, subject, store):
            raise Missing(same.result)
        if same := self._same(self._known, subject, store):
            result: R = same.result
            return result
        noted = _NotedFacts(store)
        try:
            made = make(noted)
        except Missing as error:
            self._add(self._lacked, subject, noted, error.facts)
            raise
        if noted.asked and keep(made):
            self._add(self._known, subject, noted, made)
        return made

    def _same(self, known: dict[int, tuple[_Known, ...]], subject: object, store: FactStore) -> _Known | None:
        """The result for the same facts; None without one."""
        value_of = store.known.get
        for result in known.get(id(subject), ()):
            if result.subject is not subject:
                continue
            for number, (fact, value) in enumerate(result.seen):
                if value_of(fact, UNKNOWN) is not value:
                    if number and value is not UNKNOWN and fact in store.known:
                        self._differ.add(fact)
                    break
            else:
                return result
        return None

    def _add(self, known: dict[int, tuple[_Known, ...]], subject: object, noted: _NotedFacts, result: object) -> None:
        values = dict(noted.asked)
        differ = [fact for fact in values if fact in self._differ]
        seen = (*((fact, values.pop(fact)) for fact in differ), *values.items())
        before = known.get(id(subject), ())
        known[id(subject)] = (_Known(subject, seen, result), *before)[:MOST]


class _NotedFacts:
    """The facts of a store; notes which are asked for."""

    def __init__(self, store: FactStore) -> None:
        self._value_of = store.known.get
        self.asked: list[tuple[Fact[Any], Any]] = []
        """The facts, each with its value; UNKNOWN for one that is not known."""

    def __call__(self, fact: Fact[T], /) -> T:
        value = self._value_of(fact, UNKNOWN)
        self.asked.append((fact, value))
        return available(fact, value)  # type: ignore[no-any-return]

    def all(self, *facts: Fact[Any]) -> tuple[Any, ...]:
        values = [self._value_of(fact, UNKNOWN) for fact in facts]
        self.asked.extend(zip(facts, values, strict=True))
        return all_available(facts, values)
