"""Neutralizes control characters in text that comes from a host or a file.

Such text must not control the terminal, browser or monitoring system that shows it. Text output, HTML, metrics and
error messages replace each control character with U+FFFD (`visible`); JSON has its \\u escape (`escaped`). Long lines
on a terminal are cut as well (`harmless`). `visible` also replaces known secrets, because all output passes it.
"""

from __future__ import annotations

from rigwright.core import lazy_re, secrets

LONGEST_LINE = 4000
"""Characters of the longest line that a terminal shows."""
KEPT = LONGEST_LINE - 40
"""Characters of a longer line that are shown; the number of the other characters follows."""

_CONTROL = lazy_re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates of direction
    "\u2028\u2029"  # separators of lines and paragraphs
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    "\U0001d173-\U0001d17a\U0001bca0-\U0001bca3\U000e0000-\U000e0fff"  # these two lines: no glyph, no width
    "\ufe00-\ufe0f\ufff0-\ufffb\U00013430-\U0001343f"  # variation selectors, annotations, joined hieroglyphs
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"  # signs that enclose the digits after them
    "\ud800-\udfff"  # surrogates, which cannot be encoded
    "]"
)
"""Control characters, and characters of format that are invisible or change the text around them."""


def visible(text: str) -> str:
    """Replaces known secrets with `(secret)`, and control characters but tabs and newlines with U+FFFD."""
    text = secrets.redacted(text)
    return text if text.isascii() and text.isprintable() else _CONTROL.sub("\ufffd", text)


def one_line(text: str) -> str:
    """Replaces each control character with U+FFFD, and each run of white space with one space."""
    return " ".join(visible(text).split())


def harmless(text: str) -> str:
    """`visible`, with the end of each line over LONGEST_LINE replaced by the number of the characters there."""
    shown = visible(text)
    if len(shown) <= LONGEST_LINE:
        return shown
    return "\n".join(
        line if len(line) <= LONGEST_LINE else line[:KEPT] + left_out(len(line) - KEPT) for line in shown.split("\n")
    )


def left_out(number: int) -> str:
    """The text in place of the end of a line."""
    return f"... ({number} more characters)"


def escaped(json_text: str) -> str:
    """Replaces each control character in JSON text with its \\u escape."""
    if json_text.isascii() and json_text.isprintable():
        return json_text
    import json

    return _CONTROL.sub(lambda match: json.dumps(match[0])[1:-1], json_text)
