"""Texts that cost a regular expression most, derived from the expression itself."""

from __future__ import annotations

import re
from typing import Any

try:  # Python 3.11 and newer
    from re import (
        _constants as kinds,  # type: ignore[attr-defined]
        _parser as parser,  # type: ignore[attr-defined]
    )
except ImportError:
    import sre_constants as kinds
    import sre_parse as parser

_TRIED = "a0 -_:.x/\t[]()\"'=,;#|<A9"


def worst_cases(pattern: str, flags: int = 0) -> set[tuple[str, str]]:
    """Beginnings and what follows them again and again: a near match, and all that can be repeated after all that comes
    before it."""
    found: set[tuple[str, str]] = set()
    for branch in range(2):
        near = _sample(parser.parse(pattern, flags), "", found, branch)
        found |= {("", near[:-1] or "a"), ("", near[: len(near) // 2] or "a"), ("", near[:-1] + "\n")}
    return {(before, again) for before, again in found if again}


def _sample(sequence: Any, before: str, found: set[tuple[str, str]], branch: int) -> str:
    """A text that the parsed expression matches, about; adds what can be repeated to `found`."""
    text = ""
    for kind, value in sequence:
        if kind is kinds.LITERAL:
            text += chr(value)
        elif kind is kinds.NOT_LITERAL:
            text += "b" if value == ord("a") else "a"
        elif kind is kinds.ANY:
            text += "x"
        elif kind is kinds.IN:
            text += _member(value)
        elif kind is kinds.SUBPATTERN:
            text += _sample(value[3], before + text, found, branch)
        elif kind is kinds.BRANCH:
            texts = [_sample(part, before + text, found, branch) for part in value[1]]
            text += texts[branch % len(texts)]
        elif kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
            least, most, inner = value
            one = _sample(inner, before + text, found, branch)
            if most > 20 and one:
                blank = " " if inner[0][0] is kinds.ANY else one
                found |= {(before + text, one), (before + text, blank), ("", before + text + one + "\n")}
            text += one * max(least, min(1, most) * (1 - branch))
    return text


def _member(items: Any) -> str:
    """A character of a set."""
    fits = re.compile(f"[{''.join(_written(item) for item in items)}]")
    return next((character for character in _TRIED if fits.match(character)), "a")


def _written(item: tuple[Any, Any]) -> str:
    kind, value = item
    if kind is kinds.NEGATE:
        return "^"
    if kind is kinds.LITERAL:
        return re.escape(chr(value))
    if kind is kinds.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    names = {kinds.CATEGORY_DIGIT: r"\d", kinds.CATEGORY_SPACE: r"\s", kinds.CATEGORY_WORD: r"\w"}
    return names.get(value) or {kinds.CATEGORY_NOT_DIGIT: r"\D", kinds.CATEGORY_NOT_SPACE: r"\S"}.get(value, r"\W")
