"""A fact is one command on the host and one pure function that parses its output. Facts are read in rounds.

An operation or check calls `facts(fact)`. A fact that is not read yet raises `Missing`. The planner catches it,
collects the missing facts of all steps, reads them in one script and calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Command, Result
from rigwright.facts.repeated_answers import RepeatedAnswers

READINGS = "readings"
"""The name under which readings over time are kept for the history, which records them apart."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A command on a host and the parser of its output. `durable`: the value does not change during a run (OS,
    architecture).

    `kept`: a function that returns the part of the value that the history records: `whole` for all of it, another
    function to leave out momentary readings; None: the history records nothing.

    `kept_as`: the name under which it records it, by default that of the fact.

    `scratch`: the command uses a scratch directory of the host (scratch.py), which the run removes at its end.
    """

    name: str
    command: Command
    parse: Callable[[Result], T] = field(compare=False)
    durable: bool = False
    kept: Callable[[T], object] | None = field(default=None, compare=False)
    scratch: bool = field(default=False, compare=False)
    kept_as: str = field(default="", compare=False)

    def __hash__(self) -> int:
        return hash(self.name)  # Python keeps the hash of a text; that of all fields takes ten times as long


class Merger(Struct, frozen=True):
    """How commands of several facts that differ only in what they ask for become one (merging.py).

    `kind`: what commands must have in common to be merged; a false value for a command that is asked alone. `together`:
    the command that asks for all. `split`: the answer of each command, from the answer to all of them; None where they
    cannot be told apart with certainty.
    """

    kind: Callable[[Command], Hashable]
    together: Callable[[Sequence[Command]], Command]
    split: Callable[[Result, tuple[Command, ...]], Sequence[Result] | None]


def whole(value: T) -> T:
    """All of an answer."""
    return value


class Missing(Exception):
    """Facts that were requested but are not read yet."""

    def __init__(self, facts: tuple[Fact[Any], ...]) -> None:
        super().__init__(", ".join(fact.name for fact in facts))
        self.facts = facts


class _Reason(Exception):
    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix

    def __reduce__(self) -> tuple[type[_Reason], tuple[str, str]]:
        return type(self), (str(self), self.fix)


class Unavailable(_Reason):
    """The host cannot answer now: no driver is loaded, or the program is not installed. It may answer later. `fix`: as
    of Unreadable."""


class Unreadable(_Reason):
    """The parser does not understand the answer, or the answer was too long or too late. `fix`: what a person does
    about it, if known."""


class Facts(Protocol):
    """The facts of a host, as operations and checks use them."""

    def __call__(self, fact: Fact[T], /) -> T:
        """The value. Raises Missing, Unavailable or Unreadable."""
        ...

    def all(self, *facts: Fact[Any]) -> tuple[Any, ...]:
        """The values of several facts; raises Missing once for all that are not read."""
        ...


UNKNOWN: Any = object()
"""Stands for the value of a fact that is not read yet."""


def available(fact: Fact[Any], value: Any) -> Any:
    """The value of a fact. Raises Missing for UNKNOWN, and the value where it is Unavailable or Unreadable."""
    if value is UNKNOWN:
        raise Missing((fact,))
    if isinstance(value, _Reason):
        raise value.with_traceback(None)  # with the one of an earlier raise, the frames of each raise would be kept
    return value


def all_available(facts: Sequence[Fact[Any]], values: Sequence[Any]) -> tuple[Any, ...]:
    """The values of facts. Raises Missing once for all that are UNKNOWN, and else as `available`."""
    missing = tuple(fact for fact, value in zip(facts, values, strict=True) if value is UNKNOWN)
    if missing:
        raise Missing(missing)
    return tuple(map(available, facts, values))


class FactStore:
    """The facts that were read from one host. They are forgotten after a change."""

    def __init__(self, known: dict[Fact[Any], Any] | None = None) -> None:
        self.known: dict[Fact[Any], Any] = dict(known or {})

    def __call__(self, fact: Fact[T], /) -> T:
        return available(fact, self.known.get(fact, UNKNOWN))  # type: ignore[no-any-return]

    def all(self, *facts: Fact[Any]) -> tuple[Any, ...]:
        return all_available(facts, [self.known.get(fact, UNKNOWN) for fact in facts])

    def learn(self, answers: Iterable[tuple[Fact[Any], Result]]) -> None:
        """Parses and stores every answer: a value, Unavailable or Unreadable."""
        for fact, result in answers:
            self.known[fact] = parsed(fact, result)

    def forget(self, *, everything: bool = False) -> None:
        """Forgets all facts that are not durable; with `everything`, all."""
        self.known = {} if everything else {fact: value for fact, value in self.known.items() if fact.durable}


_answers = RepeatedAnswers()


class _Asked:
    """Stands for a fact and its parser among repeated answers. It is equal to itself only, so that it is compared and
    hashed quickly."""


@lru_cache(maxsize=4096)
def _of_question(_fact: Fact[Any], _parse: object) -> _Asked:
    return _Asked()


def _asked(fact: Fact[Any]) -> _Asked:
    """The same object for equal facts with the same parser."""
    asked: _Asked | None = fact.__dict__.get("_asked")
    if asked is None:
        asked = _of_question(fact, getattr(fact.parse, "__code__", fact.parse))
        object.__setattr__(fact, "_asked", asked)
    return asked


def parsed(fact: Fact[Any], result: Result) -> Any:
    """The fact's value, or Unavailable or Unreadable with the reason."""
    if result.cut:
        return Unreadable(f"{fact.name}: more than 4 MiB of output")
    if result.too_late:
        return Unreadable(f"{fact.name}: no answer within {fact.command.timeout_s:g} s")
    if result.stdout.count(b"\n") > host_text.LINES:
        return Unreadable(f"{fact.name}: more than {host_text.LINES} lines of output")
    try:
        return _answers.parsed(_asked(fact), fact.parse, result)
    except (Unavailable, Unreadable) as reason:
        return reason
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:  # JSON of another shape
        if result.code != 0 and not result.stdout.strip() and not result.error_text:
            return Unreadable(
                f"{fact.name}: its command failed (exit {result.code}) and printed nothing, also no error ({error})"
            )
        first = result.text.strip().split("\n", 1)[:1] if result.stdout.strip() else [result.error_text]
        return Unreadable(f"{fact.name}: cannot read {first[0][:120]!r} ({error})")
