"""Neutralizes control characters in text that comes from a host or a file.

Such text must not control the terminal, browser or monitoring system that shows it. Text output, HTML, metrics and
error messages replace each control character with U+FFFD (`visible`). JSON keeps each one as its \\u escape
(`escaped`).
"""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""C0 and C1 control characters except tab and newline, line and paragraph separators, marks that change the direction
of the text, and surrogates, which cannot be encoded."""


def visible(text: str) -> str:
    """Replaces each control character in the text with U+FFFD; keeps tabs and newlines."""
    return _CONTROL.sub("\ufffd", text)


def one_line(text: str) -> str:
    """Replaces each control character with U+FFFD, and each run of white space with one space."""
    return " ".join(visible(text).split())


def escaped(json_text: str) -> str:
    """Replaces each control character in JSON text with its \\u escape."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)
