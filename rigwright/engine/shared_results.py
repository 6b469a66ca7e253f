"""Results of operations and checks that hosts have in common: with the same parameters and the same facts a function gives the same result.

Facts are the same if they are one object, as those of `facts/repeated_answers.py` are. Results are frozen, so hosts can share them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rigwright.core.lazy_dataclasses import dataclass
from rigwright.facts import Fact, Facts, FactStore

T = TypeVar("T")
R = TypeVar("R")

MOST = 4
"""The results that are kept of a step or check, the newest first."""
_NEVER = object()


@dataclass(frozen=True)
class _Known:
    """A result for a step or check, and the facts that it was made of."""

    subject: object
    seen: tuple[tuple[Fact[Any], Any], ...]
    result: Any


class SharedResults:
    """The results of the hosts of a run. For use by all threads."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[_Known, ...]] = {}

    def of(
        self, subject: object, store: FactStore, make: Callable[[Facts], R], keep: Callable[[R], bool] = lambda _: True
    ) -> R:
        """What `make` makes of the facts of a host for a step or check, or what it made of the same facts before. Raises what it raises.

        `subject`: the step or check, the same object for hosts with equal parameters. `keep`: whether a result may be used again.
        """
        known = self._known.get(id(subject), ())
        for one in known:
            if one.subject is subject and all(store.known.get(fact, _NEVER) is value for fact, value in one.seen):
                result: R = one.result
                return result
        noted = _NotedFacts(store)
        made = make(noted)
        if noted.asked and keep(made):
            seen = tuple((fact, store.known[fact]) for fact in noted.asked)
            self._known[id(subject)] = (_Known(subject, seen, made), *known)[:MOST]
        return made


class _NotedFacts:
    """The facts of a store; notes which are asked for."""

    def __init__(self, store: FactStore) -> None:
        self._store = store
        self.asked: dict[Fact[Any], None] = {}

    def __call__(self, fact: Fact[T], /) -> T:
        self.asked[fact] = None
        return self._store(fact)

    def all(self, *facts: Fact[Any]) -> tuple[Any, ...]:
        self.asked.update(dict.fromkeys(facts))
        return self._store.all(*facts)
