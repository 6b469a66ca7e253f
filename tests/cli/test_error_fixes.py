"""Every error that a user can correct says what to type or do."""

from __future__ import annotations

import ast
from collections import Counter

from tests.paths import ROOT

WITHOUT_FIX = 142
"""The calls outside of rigwright/cli, report and fleet that still have no fix. The number may only fall."""
_ERRORS = ("UsageError", "InputError", "HostError")
_FIX_AT = 3
"""The position of the argument `fix`."""


def _has_fix(call: ast.Call) -> bool:
    several = any(isinstance(argument, ast.Starred) for argument in call.args)
    return several or len(call.args) > _FIX_AT or any(keyword.arg in ("fix", None) for keyword in call.keywords)


def test_every_error_has_a_fix() -> None:
    without: Counter[str] = Counter()
    calls = 0
    for path in sorted((ROOT / "rigwright").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in _ERRORS:
                calls += 1
                without[str(path.relative_to(ROOT))] += not _has_fix(node)
    assert calls > 300
    listed = "\n".join(f"{number} in {file}" for file, number in sorted(without.items()) if number)
    own = [file for file, number in without.items() if number and file.split("/")[1] in ("cli", "report", "fleet")]
    assert own == [], listed
    assert sum(without.values()) <= WITHOUT_FIX, listed
