"""Parses whole numbers from options, variables and files, and formats them."""

from __future__ import annotations

import re

from rigwright.core.errors import UsageError

MOST = 999_999


def number(text: object) -> int | None:
    """The whole number in a text of up to nine digits, with an optional minus sign; None for any other text."""
    word = str(text).strip()
    return int(word) if re.fullmatch(r"-?[0-9]{1,9}", word) else None


def whole(
    where: str, text: str, least: int, quantity: str, *, most: int = MOST, expected: str = "", fix: str = ""
) -> int:
    """Parses the value of an option. Raises UsageError when it is not a whole number from `least` to `most`."""
    value = number(text)
    if value is None or not least <= value <= most:
        wanted = expected or f"a whole number from {least} to {most}"
        raise UsageError(where, f"'{text}' is no number of {quantity}", wanted, fix)
    return value


def count(number: int, word: str) -> str:
    """The number and the word in singular or plural: `1 check`, `4 checks`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def duration(seconds: float) -> str:
    """`40 s`, `9 minutes`, `5 hours`, `3 days`: rounded down, in the largest unit of which there are two."""
    for unit, length_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length_s:
            return f"{int(seconds // length_s)} {unit}s"
    return f"{int(seconds)} s"


def numbers(version: str) -> tuple[int, ...]:
    """Converts 535.171.04 to (535, 171, 4), which can be compared. Raises ValueError for any other text."""
    return tuple(int(part) for part in version.split("."))
