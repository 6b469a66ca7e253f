"""A fact is one command on the host and one pure function that parses its output.

An operation or check calls `facts(fact)`, which raises `Missing` for a fact that is not read yet. The planner collects
the missing facts of all steps, reads them with one script and calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Command, Result
from rigwright.facts.repeated_answers import RepeatedAnswers

READINGS = "readings"
"""The name under which the history records readings over time."""

T = TypeVar("T")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A command on a host and the parser of its output.

    `durable`: the value does not change during a run (OS, architecture). `kept`: returns the part of the value that the
    history records, under the name `kept_as` (default: the fact's name); None: the history records nothing. `scratch`:
    the command uses a scratch directory of the host (scratch.py), which the run removes at its end.
    """

    name: str
    command: Command
    parse: Callable[[Result], T] = field(compare=False)
    durable: bool = False
    kept: Callable[[T], object] | None = field(default=None, compare=False)
    scratch: bool = field(default=False, compare=False)
    kept_as: str = field(default="", compare=False)

    def __hash__(self) -> int:
        return hash(self.name)  # Python keeps the hash of a string; hashing all fields takes ten times as long


class Merger(Struct, frozen=True):
    """How commands that differ only in their arguments become one (merging.py).

    `kind` returns what commands must have in common; a false value for a command that cannot be merged. `together`
    returns the merged command, `split` the answer of each command, or None if the merged answer cannot be split.
    """

    kind: Callable[[Command], Hashable]
    together: Callable[[Sequence[Command]], Command]
    split: Callable[[Result, tuple[Command, ...]], Sequence[Result] | None]


def whole(value: T) -> T:
    """Returns the value, as the `kept` of a fact whose whole value the history records."""
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
    """The host cannot answer now: no driver is loaded, or the program is not installed. `fix`: as of Unreadable."""


class Unreadable(_Reason):
    """The answer is too long, too late or cannot be parsed. `fix`: what a person does about it, "" if unknown."""


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
    """The value of a fact. Raises Missing for UNKNOWN, and the value if it is Unavailable or Unreadable."""
    if value is UNKNOWN:
        raise Missing((fact,))
    if isinstance(value, _Reason):
        raise value.with_traceback(None)  # otherwise each raise adds frames to the traceback of the one before
    return value


def all_available(facts: Sequence[Fact[Any]], values: Sequence[Any]) -> tuple[Any, ...]:
    """The values of facts. Raises Missing once for all that are UNKNOWN, otherwise as `available`."""
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


def parsed(fact: Fact[Any], result: Result) -> Any:
    """The fact's value; Unavailable or Unreadable with the reason if it has none."""
    if result.cut:
        return Unreadable(f"{fact.name}: more than 4 MiB of output")
    if result.too_late:
        return Unreadable(f"{fact.name}: no answer within {fact.command.timeout_s:g} s")
    if result.stdout.count(b"\n") > host_text.LINES:
        return Unreadable(f"{fact.name}: more than {host_text.LINES} lines of output")
    try:
        return _answers.parsed((fact, getattr(fact.parse, "__code__", fact.parse)), fact.parse, result)
    except (Unavailable, Unreadable) as reason:
        return reason
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        if result.code != 0 and not result.stdout.strip() and not result.error_text:
            return Unreadable(
                f"{fact.name}: its command failed (exit {result.code}) and printed nothing, also no error ({error})"
            )
        first = result.text.strip().split("\n", 1)[:1] if result.stdout.strip() else [result.error_text]
        return Unreadable(f"{fact.name}: cannot read {first[0][:120]!r} ({error})")
