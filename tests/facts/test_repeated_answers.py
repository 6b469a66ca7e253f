"""Answers of several hosts that are parsed once: which are kept, how many, and what a host cannot do to others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import Struct

from rigwright.core.command import Result
from rigwright.facts.repeated_answers import FrozenDict, RepeatedAnswers, immutable


class Fixed(Struct, frozen=True):
    name: str
    parts: Any = ()


class Loose(Struct):
    name: str


class Parser:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, result: Result) -> Any:
        self.calls += 1
        if result.stdout == b"bad":
            raise ValueError("no such answer")
        return Fixed(result.text)


def answer(text: str, code: int = 0) -> Result:
    return Result(code, text.encode())


def test_an_answer_that_comes_again_is_parsed_twice_and_then_known() -> None:
    answers, parse = RepeatedAnswers(), Parser()
    values = [answers.parsed("name", parse, answer("a")) for _ in range(5)]
    assert parse.calls == 2
    assert values[1] is values[4]
    assert answers.parsed("name", parse, answer("a", code=1)) == Fixed("a")
    assert answers.parsed("other", parse, answer("a")) == Fixed("a")
    assert parse.calls == 4, "another exit code and another question are other answers"


def test_errors_are_raised_each_time_and_stderr_is_apart() -> None:
    answers, parse = RepeatedAnswers(), Parser()
    for _ in range(3):
        with pytest.raises(ValueError, match="no such answer"):
            answers.parsed("name", parse, answer("bad"))
    assert parse.calls == 3
    answers = RepeatedAnswers()
    for out, error in ((b"ab", b"c"), (b"a", b"bc"), (b"ab", b"c"), (b"a", b"bc")):
        assert answers.parsed("name", lambda result: result.stdout, Result(0, out, error)) == out


def test_what_is_kept_is_bounded() -> None:
    answers, parse = RepeatedAnswers(most_seen=100, most_kept=10, most_bytes=1000), Parser()
    for number in range(300):
        for _ in range(2):
            answers.parsed("name", parse, answer(f"{number} " * 30))
    assert len(answers._seen) <= 100
    assert len(answers._kept) <= 10
    assert answers._bytes == sum(size for _, size in answers._kept.values()) <= 1000
    for _ in range(3):
        assert answers.parsed("name", parse, answer("long " * 1000)) == Fixed("long " * 1000)
    assert answers._bytes <= 1000


def test_only_what_cannot_be_changed_is_shared() -> None:
    assert all(map(immutable, (1, "a", None, ("a", 1.5), frozenset("a"), Fixed("a"), FrozenDict({"a": Fixed("b")}))))
    assert not any(map(immutable, ([], {}, set(), ("a", []), Fixed("a", []), Loose("a"), FrozenDict({"a": []}))))
    answers = RepeatedAnswers()
    lists = [answers.parsed("name", lambda _: ["a"], answer("a")) for _ in range(4)]
    lists[0].append("b")
    assert lists[1:] == [["a"]] * 3
    dicts = [answers.parsed("dict", lambda _: {"a": 1}, answer("a")) for _ in range(4)]
    assert dicts == [{"a": 1}] * 4
    assert dicts[2] is dicts[3]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(b=2), lambda d: d.pop("a"), lambda d: d.clear(), lambda d: d.setdefault("b", 2),
        lambda d: d.popitem(),
        lambda d: d.__setitem__("b", 2), lambda d: d.__delitem__("a"), lambda d: d.__ior__({"b": 2}),
    ],
)  # fmt: skip
def test_a_frozen_dict_refuses_changes(change: Any) -> None:
    frozen = FrozenDict({"a": 1})
    with pytest.raises(TypeError, match="cannot be changed"):
        change(frozen)
    assert frozen == {"a": 1}
    assert (frozen | {"b": 2}, type(frozen.copy())) == ({"a": 1, "b": 2}, dict)


def test_threads_get_one_value() -> None:
    answers, parse = RepeatedAnswers(), Parser()
    answers.parsed("name", parse, answer("a"))
    answers.parsed("name", parse, answer("a"))
    with ThreadPoolExecutor(8) as threads:
        values = list(threads.map(lambda _: answers.parsed("name", parse, answer("a")), range(8)))
    assert len({id(value) for value in values}) == 1
