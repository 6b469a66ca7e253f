"""JSON values as types: what a type allows is taken, everything else is refused."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import pytest
from msgspec import Struct

from rigwright.core.typed_json import typed


class Inner(Struct, frozen=True):
    name: str


class Outer(Struct, frozen=True):
    number: int
    ratio: float = 1.0
    inner: Inner | None = None
    names: tuple[str, ...] = ()
    kind: Literal["a", "b"] = "a"


GIVEN: dict[str, Any] = {"number": 3, "ratio": 2, "inner": {"name": "x"}, "names": ["y", "z"], "kind": "b"}


def test_what_a_type_allows_is_taken() -> None:
    assert typed(GIVEN, Outer) == Outer(3, 2.0, Inner("x"), ("y", "z"), "b")
    assert typed([GIVEN], tuple[Outer, ...])[0].number == 3


@pytest.mark.parametrize(
    "other",
    [
        {"number": "3"}, {"number": True}, {"number": 3.5}, {"ratio": math.nan}, {"ratio": math.inf}, {"inner": {}},
        {"names": "y"},
        {"names": [1]}, {"kind": "c"}, {"more": 1}, {"inner": {"name": "x", "more": 1}}, {"names": ["\ud800"]},
    ],
    ids=str,
)  # fmt: skip
def test_everything_else_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - every refusal is one
        typed({**GIVEN, **other}, Outer)


@pytest.mark.parametrize("key", GIVEN)
def test_a_missing_key_is_refused_also_where_the_field_has_a_default(key: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - every refusal is one
        typed({name: value for name, value in GIVEN.items() if name != key}, Outer)


@pytest.mark.parametrize("value", [None, 7, "text", [], [GIVEN], {}, json.loads("[[]]")])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - every refusal is one
        typed(value, Outer)
