"""Runs every case in tests/cases: KIND/NAME.yml has the cases of the fact, operation or check NAME, one YAML document
each.

Facts in a case are the host's output, and the real parsers read them: `stdout` (text), `code`, `stderr`; or `file`
with `content`, `mode`, `owner`, `group`; or `absent: true`; or `shipped`, a file of rigwright, with its `mode`;
or `now_plus_s`, the seconds since 1970 of this machine's clock plus a number. A fact that reads the XML of nvidia-smi
may have rows of cells in its place (nvidia_smi.py).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import pkgutil
import random
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pynvml
import pytest
import yaml
from msgspec.structs import asdict, replace

import rigwright.facts
from rigwright.core import features
from rigwright.core.change import Note
from rigwright.core.command import Result
from rigwright.core.errors import HostError
from rigwright.engine.parameters import convert_value, types
from rigwright.engine.plugins import known
from rigwright.facts import Fact, FactStore, Missing, Unavailable, Unreadable, parsed
from rigwright.facts.plain import plain
from tests import nvidia_smi
from tests.paths import CASES, ROOT


class Case(NamedTuple):
    """A document of tests/cases: `tested` is the name of the fact, operation or check; `title` what is special in this
    case."""

    kind: str
    tested: str
    title: str
    content: dict[str, Any]


@functools.cache
def cases(kind: str) -> tuple[Case, ...]:
    """Returns the cases of all facts, operations or checks. Raises ValueError for two cases of one name with one
    title."""
    found: dict[tuple[str, str], Case] = {}
    for path in sorted((CASES / kind).glob("*.yml")):
        for document in yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader):
            title = document.pop("case")
            if (path.stem, title) in found:
                raise ValueError(f"{path}: two cases are named {title}")
            found[path.stem, title] = Case(kind, path.stem, title, document)
    return tuple(found.values())


def case_named(kind: str, tested: str, title: str) -> dict[str, Any]:
    """Returns the content of a case. Raises StopIteration if there is none."""
    return next(case.content for case in cases(kind) if (case.tested, case.title) == (tested, title))


def _parameters_of(kind: str) -> list[Any]:
    return [pytest.param(case, id=f"{case.tested}/{case.title}") for case in cases(kind)]


def result_of(given: Any, fact: str) -> Result:
    """Returns the result of the command of a fact as the case describes it."""
    if (name := fact.partition("(")[0]) in nvidia_smi.CELLS:
        given = given if isinstance(given, dict) else {"stdout": given}
        given = {**given, "stdout": nvidia_smi.xml(name, given.get("stdout", ""))}
    if isinstance(given, str):
        return Result(0, given.encode())
    if given.get("absent"):
        return Result(0, b"absent\n")
    if "now_plus_s" in given:
        return Result(0, f"{time.time() + given['now_plus_s']:.0f}\n".encode())
    if "shipped" in given:
        content = (ROOT / given["shipped"] if "/" in given["shipped"] else Path(str(pynvml.__file__))).read_bytes()
        return file_on_host(content, given["mode"])
    if "file" in given:
        file = {"mode": "644", "owner": "root", "group": "root", "content": "", **given["file"]}
        content = file["content"].encode()
        head = f"regular file|{file['mode']}|{file['owner']}|{file['group']}|{len(content)}\n"
        return Result(0, head.encode() + content)
    return Result(given.get("code", 0), str(given.get("stdout", "")).encode(), str(given.get("stderr", "")).encode())


def file_on_host(content: bytes, mode: str) -> Result:
    """Returns the host's output for a file owned by root: the content, or the digest if the content is long."""
    head = f"regular file|{mode}|root|root|{len(content)}\n".encode()
    digest = f"{hashlib.sha256(content).hexdigest()}  -\n".encode()
    return Result(0, head + (content if len(content) <= 65536 else digest))


def _ask(function: Any, parameters: dict[str, Any], answers: dict[str, Any]) -> tuple[list[Any], int]:
    """Returns the items that an operation or check yields with the case's facts, and the number of rounds."""
    store = FactStore()
    for rounds in range(1, 10):
        try:
            return list(function(store, **parameters)), rounds - 1
        except Missing as wanted:
            for fact in wanted.facts:
                assert fact.name in answers, f"the case has no answer for the fact {fact.name}"
                store.known[fact] = parsed(fact, result_of(answers[fact.name], fact.name))
    raise AssertionError("facts that never settle")


def converted_parameters(function: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a case as the operation or check takes them."""
    hints = {**get_type_hints(function), **types(function)}
    return {name: convert_value(value, hints[name], "case", name) for name, value in given.items()}


@pytest.mark.parametrize("given", [*_parameters_of("operations"), *_parameters_of("checks")])
def test_operation_or_check(given: Case) -> None:
    case, function = given.content, known(given.kind)[given.tested]
    parameters = converted_parameters(function, case.get("parameters") or {})
    answers = case.get("facts") or {}
    if "error" in case or "unavailable" in case:
        wanted = HostError if "error" in case else (Unavailable, Unreadable)
        with pytest.raises(wanted) as caught:
            _ask(function, parameters, answers)
        assert case.get("error", case.get("unavailable")) in str(caught.value)
        return
    found, rounds = _ask(function, parameters, answers)
    assert rounds == case["rounds"]
    notes = [one.text for one in found if isinstance(one, Note)]
    found = [one for one in found if not isinstance(one, Note)]
    _matches(found, case.get("changes", case.get("findings", [])))
    if "notes" in case:
        assert notes == case["notes"]
    if found and given.kind == "operations":
        _writes(found, case["then"])
        again, _ = _ask(function, parameters, {**answers, **case["then"]})
        assert [one for one in again if not isinstance(one, Note)] == [], (
            "after its own changes the operation still wants something"
        )


def _writes(found: list[Any], then: dict[str, Any]) -> None:
    """Asserts that each change writes the content that the case gives for the file after the change."""
    for one in found:
        after = then.get(f"files.file({one.subject})")
        content = after.get("file", {}).get("content") if isinstance(after, dict) else None
        written = [command.stdin for command in one.commands if command.stdin]
        if content is not None and written:
            assert written == [content.encode()]


def _matches(found: list[Any], wanted: list[dict[str, Any]]) -> None:
    assert len(found) == len(wanted), [asdict(one) for one in found]
    for one, expected in zip(found, wanted, strict=True):
        for key, value in expected.items():
            if key == "commands":
                assert [str(cmd) for cmd in one.commands] == value or all(
                    any(words in str(cmd) for cmd in one.commands) for words in value
                ), [str(cmd) for cmd in one.commands]
            else:
                assert getattr(one, key) == value, f"{key}: {getattr(one, key)!r}"


@functools.cache
def facts_by_name() -> dict[str, Any]:
    """Returns every fact by its name, and every function that makes a fact by MODULE.FUNCTION."""
    found: dict[str, Any] = {}
    for prefix, package in [("", rigwright.facts), *((f"{name}.", one) for name, one in features.features().items())]:
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                if isinstance(value, Fact):
                    found[value.name] = value
                elif makes_facts(value) and value.__module__ == info.name and not name.startswith("_"):
                    inner = "" if prefix else f"{info.name.removeprefix(f'{package.__name__}.')}."
                    found[f"{prefix}{inner}{name}"] = value
    return found


def makes_facts(value: object) -> bool:
    """Returns whether a value is a function that returns a fact."""
    return inspect.isfunction(value) and "Fact[" in str(inspect.signature(value).return_annotation)


def fact_of(case: Case) -> Fact[Any]:
    """Returns the fact of a case, with its arguments."""
    thing = facts_by_name()[case.tested]
    if isinstance(thing, Fact):
        return thing
    fact: Fact[Any] = thing(*(tuple(arg) if isinstance(arg, list) else arg for arg in case.content["arguments"]))
    return fact


@pytest.mark.parametrize("given", _parameters_of("facts"))
def test_fact(given: Case) -> None:
    fact, case = fact_of(given), given.content
    value = parsed(fact, result_of(case["answer"], fact.name))
    if "unavailable" in case or "unreadable" in case:
        kind = Unavailable if "unavailable" in case else Unreadable
        assert isinstance(value, kind), value
        assert case.get("unavailable", case.get("unreadable")) in str(value)
    else:
        assert plain(value) == case["value"]


ODD = (b"", b"ERR!", b"[N/A]", b"[Unknown Error]", b"null", b"[]", b"{}", b"-1", b"nan", b"1e999", b"\xff", b"|", b"\n")


def _damaged(answer: bytes, chance: random.Random) -> bytes:
    """Returns a damaged answer: truncated, with an extra line, another byte, or a word in place of a number."""
    at = chance.randrange(len(answer) + 1)
    lines = answer.split(b"\n")
    numbers = list(re.finditer(rb"[0-9.]+|\"[^\"]*\"", answer)) or [re.search(rb"", answer)]
    number = chance.choice(numbers)
    assert number
    odd = chance.choice(ODD)
    return chance.choice(
        (
            answer[:at],
            answer[:at] + odd + answer[at:],
            b"\n".join(chance.sample(lines, len(lines))),
            answer[: number.start()] + odd + answer[number.end() :],
        )
    )


@pytest.mark.parametrize("given", _parameters_of("facts"))
def test_a_damaged_answer_is_a_value_or_a_refusal(given: Case) -> None:
    fact = fact_of(given)
    result, chance = result_of(given.content["answer"], fact.name), random.Random(f"{given.tested}/{given.title}")
    for _ in range(40):
        parsed(fact, replace(result, stdout=_damaged(result.stdout, chance)))


def test_everything_has_a_case() -> None:
    names = {"facts": facts_by_name(), "operations": known("operations"), "checks": known("checks")}
    for kind, wanted in names.items():
        assert sorted({case.tested for case in cases(kind)}) == sorted(wanted), f"tests/cases/{kind}: a file for each"
