"""The text of the JSON document: indented for a few hosts, a line for each of many."""

from __future__ import annotations

import json

import pytest

from rigwright.report import json_document
from rigwright.report.json_document import MANY


@pytest.mark.parametrize("count", [0, 1, MANY, MANY + 1, 200])
def test_the_text_is_the_document(count: int) -> None:
    host = {
        "status": "ok",
        "text": "two\nlines, a \x1b[31mcolour\x1b[0m, \u202e and \ud7ff",
        "nested": {"a": [1, None, {"b": 0.5}]},
    }
    hosts = {f"host{number}": {**host, "number": number} for number in range(count)}
    document = {"schema": 2, "error": {"found": "a\nb"}, "hosts": hosts, "rollout": {"batches": [["a", "b"], []]}}
    text = json_document.dumps(document)
    assert json.loads(text) == document
    assert [*json.loads(text)] == [*document]
    assert "\x1b" not in text
    assert text.startswith("{\n")
    assert text.endswith("\n}")
    if count > MANY:
        assert sum(line.startswith('    "host') for line in text.split("\n")) == count
        assert '\n  "rollout": {\n    "batches": [' in text
    else:
        plain = json.dumps(document, indent=2, ensure_ascii=False)
        assert text == plain.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e")
