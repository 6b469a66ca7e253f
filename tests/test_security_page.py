"""SECURITY.md: every test that it names exists, every promise names one, and every attack has a test."""

from __future__ import annotations

import ast
import re

import pytest

from tests.paths import ROOT

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
PROMISES = re.findall(r"^### (\d+\. .+?)$(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_every_promise_and_attack_has_a_test() -> None:
    assert len(PROMISES) == 10
    assert [title for title, text in PROMISES if not re.search(r"`tests/[\w/]+\.py::\w+`", text)] == []
    missing = [
        number for number in range(1, 18) if not [*(ROOT / "tests/security").glob(f"test_attack_{number:02}_*.py")]
    ]
    assert missing == []
