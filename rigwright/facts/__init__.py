"""A fact is one command on the host and one pure function that reads its output; facts are read in rounds.

An operation or check asks `facts(fact)`. What is not read yet raises `Missing`, which only the planner catches: it
collects every missing fact of all steps, reads them in one script and calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from rigwright.shell import Command, Result

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Fact(Generic[T]):
    """One question to a host. `durable`: the answer holds while the machine is the machine (OS, architecture).

    `kept`: what of the answer the history keeps; `whole` for one that says what the machine is and not how it does at
    the moment, a function that leaves the moment out for one that says both, None for nothing.
    """

    name: str
    command: Command
    parse: Callable[[Result], T] = field(compare=False)
    durable: bool = False
    kept: Callable[[T], object] | None = field(default=None, compare=False)


def whole(value: T) -> T:
    """All of an answer."""
    return value


class Missing(Exception):
    """Facts that were asked for and not read yet."""

    def __init__(self, facts: tuple[Fact[Any], ...]) -> None:
        super().__init__(", ".join(fact.name for fact in facts))
        self.facts = facts


class Unavailable(Exception):
    """The host cannot answer now: no driver is loaded, the program is not there. It may be able to later."""


class Unreadable(Exception):
    """The host answered something that the parser does not understand, too much, or too late."""


class Facts(Protocol):
    """What operations and checks see of a host."""

    def __call__(self, fact: Fact[T], /) -> T:
        """The value. Raises Missing, Unavailable or Unreadable."""
        ...

    def all(self, *facts: Fact[Any]) -> tuple[Any, ...]:
        """The values of several facts; raises Missing once for all that are not read."""
        ...


class FactStore:
    """What is known of one host; forgets after changes."""

    def __init__(self, known: dict[Fact[Any], Any] | None = None) -> None:
        self.known: dict[Fact[Any], Any] = dict(known or {})

    def __call__(self, fact: Fact[T], /) -> T:
        if fact not in self.known:
            raise Missing((fact,))
        value = self.known[fact]
        if isinstance(value, (Unavailable, Unreadable)):
            raise value
        return value  # type: ignore[no-any-return]

    def all(self, *facts: Fact[Any]) -> tuple[Any, ...]:
        missing = tuple(fact for fact in facts if fact not in self.known)
        if missing:
            raise Missing(missing)
        return tuple(self(fact) for fact in facts)

    def learn(self, answers: Iterable[tuple[Fact[Any], Result]]) -> None:
        """Every answer is parsed and known afterwards, as a value or as why there is none."""
        for fact, result in answers:
            self.known[fact] = parsed(fact, result)

    def forget(self, *, everything: bool = False) -> None:
        """Nothing is known but what holds while the machine is the machine (not even that with `everything`)."""
        self.known = {} if everything else {fact: value for fact, value in self.known.items() if fact.durable}


def parsed(fact: Fact[Any], result: Result) -> Any:
    """The fact's value, or the Unavailable or Unreadable that says why there is none."""
    if result.cut:
        return Unreadable(f"{fact.name}: more than 4 MiB of output")
    if result.code in (124, 137, -1):
        return Unreadable(f"{fact.name}: no answer within {fact.command.timeout_s:g} s")
    try:
        return fact.parse(result)
    except (Unavailable, Unreadable) as reason:
        return reason
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:  # JSON of another shape
        first = result.text.strip().splitlines()[:1] or [result.error_text]
        return Unreadable(f"{fact.name}: cannot read {first[0][:120]!r} ({error})")
