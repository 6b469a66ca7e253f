"""Control characters of a host's text are replaced, or escaped in JSON."""

from __future__ import annotations

import json

import pytest

from rigwright.core.control_characters import escaped, one_line, visible
from rigwright.core.errors import HostError


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x1b", "\r", "\x7f", "\x9b", "\u061c", "\u200e", "\u2028",
                                       "\u202e", "\u2066", "\ud800"])  # fmt: skip
def test_each_is_replaced_or_escaped(character: str) -> None:
    assert visible(f"a{character}b") == "a\ufffdb"
    assert str(HostError("host", f"a{character}b")) == "host: a\ufffdb"
    text = escaped(json.dumps(f"a{character}b", ensure_ascii=False))
    assert character not in text
    assert json.loads(text) == f"a{character}b"


def test_other_text_stays() -> None:
    assert visible("line\n\ttab é 漢 👩 💻") == "line\n\ttab é 漢 👩 💻"
    assert one_line(" two \n\t lines\x1b ") == "two lines\ufffd"
