"""Typed JSON: what a type allows survives the journey, and everything else is refused in both directions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NewType, TypedDict

import pytest

from rigwright.core import typed_json
from rigwright.core.schema import BusId
from rigwright.core.secrets import Secret
from rigwright.core.typed_json import Codec

Word = NewType("Word", str)


@dataclass(frozen=True)
class Base:
    """A dataclass of which a value may be of several kinds."""

    number: int


@dataclass(frozen=True)
class Left(Base):
    """One kind."""

    inner: Left | None = None
    names: Mapping[BusId, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Right(Base):
    """Another kind, with a field that is not written."""

    data: bytes = b""
    own: Any = "own"


class Row(TypedDict):
    """An object."""

    from_: str
    item: Base


CODEC = Codec(kinds={Base: (Left, Right)}, left_out=frozenset({(Right, "own")}))


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (None, int | None), (3, int | None), (2.5, float), (4, float), (True, bool), ("\x1b\0", str), (b"\xff\0", bytes),
        ("a", Literal["a", 1]), (Word("w"), Word), ((1, "a"), tuple[int, str]), ((), tuple[int, ...]), ([1], list[int]),
        (frozenset({"a"}), frozenset[str]), ({("a", 1): 2}, dict[tuple[str, int], int]), ({"a": [{"b": None}]}, Any),
        (Left(1, Left(2), {BusId("x"): ("y",)}), Base), (Right(1, b"z"), Base), ("x", int | str), (2**63 - 1, int),
    ],
)  # fmt: skip
def test_what_a_type_allows_survives(value: Any, hint: Any) -> None:
    text = typed_json.dumps(CODEC.write(value, hint))
    assert CODEC.read(typed_json.loads(text), hint) == value


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Secret("opensesame"), str), (Secret("opensesame"), Any), ({"a": [Secret("opensesame")]}, Any), (object(), Any),
        (math.nan, float), (math.inf, Any), (2**63, int), (1, str), (True, int), (1, bool), ("b", Literal["a"]), ({1: 2}, Any),
        ((1,), tuple[int, str]), (Base(1), Base), (Left(1), Right), (print, Any), ("\ud800", str),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused(value: Any, hint: Any) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - every refusal is one
        CODEC.write(value, hint)
    assert "opensesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"number": 1, "data": ""}', Base), ('{"kind": "Base", "number": 1}', Base), ('{"kind": "os", "number": 1}', Base),
        ('{"kind": "Right", "number": 1}', Base), ('{"kind": "Right", "number": 1, "data": "", "own": 1}', Base),
        ('{"kind": "Right", "number": 1, "data": "!"}', Base), ("[[1, 2, 3]]", dict[int, int]), ("[[[], 2]]", dict[int, int]),
        ("7", dict[int, int]), ("7", list[int]), ('{"a": 1}', dict[str, str]), ("NaN", float), ("1e999", float), ("1", Mapping[str, int]),
        ('{"from_": "a"}', Row), ('{"from_": "a", "item": 1}', Row), (json.dumps("\ud800"), str), ("1", type),
    ],
)  # fmt: skip
def test_what_a_type_does_not_allow_is_refused(text: str, hint: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - every refusal is one
        CODEC.read(typed_json.loads(text), hint)


@pytest.mark.parametrize(
    "text", [b"{}", None, "", "{", "[" * 200_000, "[" * 49 + "]" * 49, "1" * 5000, " " * (33 << 20)]
)
def test_what_is_no_document_is_refused(text: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - every refusal is one
        typed_json.loads(text)
