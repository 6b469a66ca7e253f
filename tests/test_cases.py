"""Runs every case in tests/cases: KIND/NAME/CASE.yml, where NAME is the fact, operation or check under test.

Facts in a case are the host's output, and the real parsers read them: `stdout` (text), `code`, `stderr`; or `file`
with `content`, `mode`, `owner`, `group`; or `absent: true`; or `shipped`, a file of rigwright, with its `mode`;
or `now_plus_s`, the seconds since 1970 of this machine's clock plus a number. A fact that reads the XML of nvidia-smi may have rows
of cells in its place (nvidia_smi.py).
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pynvml
import pytest
import yaml
from msgspec.structs import asdict, replace

from rigwright.core import features
from rigwright.core.change import Note
from rigwright.core.command import Result
from rigwright.core.errors import HostError
from rigwright.engine.parameters import converted, types
from rigwright.engine.plugins import known
from rigwright.facts import Fact, FactStore, Missing, Unavailable, Unreadable, parsed
from rigwright.facts.plain import plain
from tests import nvidia_smi
from tests.paths import CASES, ROOT


def _cases(kind: str) -> list[Any]:
    return [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in sorted((CASES / kind).glob("*/*.yml"))]


def _result(given: Any, fact: str) -> Result:
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
                store.known[fact] = parsed(fact, _result(answers[fact.name], fact.name))
    raise AssertionError("facts that never settle")


def _parameters(function: Any, given: dict[str, Any]) -> dict[str, Any]:
    hints = {**get_type_hints(function), **types(function)}
    return {name: converted(value, hints[name], "case", name) for name, value in given.items()}


@pytest.mark.parametrize("path", [*_cases("operations"), *_cases("checks")])
def test_operation_or_check(path: Path) -> None:
    case = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    function = known(path.parent.parent.name)[path.parent.name]
    parameters = _parameters(function, case.get("parameters") or {})
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
    if found and path.parent.parent.name == "operations":
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
def _facts() -> dict[str, Any]:
    """Returns every fact, and every function that makes one, as MODULE.NAME; of a feature a fact by its own name."""
    found: dict[str, Any] = {}
    package = importlib.import_module("rigwright.facts")
    modules = [(info.name, f"rigwright.facts.{info.name}") for info in pkgutil.iter_modules(package.__path__)]
    for name, feature in features.features().items():
        modules += [(name, info.name) for info in pkgutil.iter_modules(feature.__path__, f"{feature.__name__}.")]
    for prefix, path in modules:
        module = importlib.import_module(path)
        for name, value in vars(module).items():
            makes = (
                inspect.isfunction(value)
                and not name.startswith("_")
                and value.__module__ == module.__name__
                and "Fact[" in str(inspect.signature(value).return_annotation)
            )
            if isinstance(value, Fact) and "features" in path:
                found[value.name] = value
            elif isinstance(value, Fact) or makes:
                found[f"{prefix}.{name}"] = value
    return found


def _fact(path: Path) -> tuple[Fact[Any], dict[str, Any]]:
    case = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    thing = _facts()[path.parent.name]
    if isinstance(thing, Fact):
        return thing, case
    return thing(*(tuple(arg) if isinstance(arg, list) else arg for arg in case["arguments"])), case


@pytest.mark.parametrize("path", _cases("facts"))
def test_fact(path: Path) -> None:
    fact, case = _fact(path)
    value = parsed(fact, _result(case["answer"], fact.name))
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


@pytest.mark.parametrize("path", _cases("facts"))
def test_a_damaged_answer_is_a_value_or_a_refusal(path: Path) -> None:
    fact, case = _fact(path)
    result, chance = _result(case["answer"], fact.name), random.Random(path.as_posix().partition("tests/")[2])
    for _ in range(40):
        parsed(fact, replace(result, stdout=_damaged(result.stdout, chance)))


def _without_case(kind: str, names: Iterator[str] | list[str]) -> list[str]:
    return [name for name in names if not list((CASES / kind / name).glob("*.yml"))]


def test_everything_has_a_case() -> None:
    missing = _without_case("facts", list(_facts())) + _without_case("operations", list(known("operations")))
    missing += _without_case("checks", list(known("checks")))
    assert missing == [], "no case in tests/cases for these"
