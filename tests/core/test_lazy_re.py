"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

import rigwright
from rigwright.core import lazy_re


def test_it_answers_as_a_compiled_one() -> None:
    lazy, eager = (
        lazy_re.compile(r"(\d+)-(?P<name>[a-z]+)", re.IGNORECASE),
        re.compile(r"(\d+)-(?P<name>[a-z]+)", re.IGNORECASE),
    )
    text = "7-Ab, 12-cd"
    assert lazy.pattern == eager.pattern
    assert lazy.findall(text) == eager.findall(text)
    assert lazy.sub(r"\2", text) == eager.sub(r"\2", text)
    found = lazy.match(text)
    assert found is not None
    assert found["name"] == "Ab"
    assert lazy.fullmatch(text) is None
    assert lazy.flags == eager.flags
    assert repr(lazy) == repr(eager)


def test_nothing_is_compiled_before_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    real = re.compile
    monkeypatch.setattr(lazy_re.re, "compile", lambda *given: compiled.append(given) or real(*given))
    lazy = lazy_re.compile("a+")
    assert lazy.pattern == "a+"
    assert not compiled
    assert lazy.search("caat")
    assert lazy.search("b") is None
    assert len(compiled) == 1


def test_every_pattern_of_every_module_compiles() -> None:
    names = [module.name for module in pkgutil.walk_packages(rigwright.__path__, "rigwright.")]
    lazy = {
        f"{name}.{key}": value
        for name in names
        if ".onhost" not in name and not name.endswith("__main__")
        for key, value in vars(importlib.import_module(name)).items()
        if type(value).__name__ == "_Lazy"
    }
    assert len(lazy) > 100
    for key, value in lazy.items():
        assert isinstance(re.compile(value.pattern, value.flags), re.Pattern), key
