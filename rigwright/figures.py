"""Whole numbers: as they are typed (on the command line, in the environment, in a file), and as they are told."""

from __future__ import annotations

import re

from rigwright.errors import UsageError

MOST = 999_999


def number(text: object) -> int | None:
    """The whole number that a word is, below 0 too; None for anything else, for `²`, and for one of more than nine digits."""
    word = str(text).strip()
    return int(word) if re.fullmatch(r"-?[0-9]{1,9}", word) else None


def whole(where: str, text: str, least: int, what: str, *, most: int = MOST, wanted: str = "", todo: str = "") -> int:
    """A whole number of so many that was typed for an option. Raises UsageError."""
    found = number(text)
    if found is None or not least <= found <= most:
        wanted = wanted or f"a whole number from {least} to {most}"
        raise UsageError(where, f"'{text}' is no number of {what}", wanted, todo)
    return found


def count(number: int, word: str) -> str:
    """`1 check`, `4 checks`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
