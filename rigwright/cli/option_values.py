"""The types of options: what a text on the command line may be, and its value."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from rigwright.core import numbers
from rigwright.core.errors import UsageError


class OptionType(Struct, frozen=True):
    """The type of an option. `parse` raises ValueError for a text that is `wrong`. `example` is a right text."""

    parse: Callable[[str], Any]
    wrong: str
    expected: str
    example: str

    def value(self, flag: str, text: str) -> Any:
        """The value of the text after the flag. Raises UsageError."""
        try:
            return self.parse(text.strip())
        except (ValueError, OverflowError):
            problem = f"'{text[:80]}' is no {self.wrong}"
            raise UsageError(flag, problem, self.expected, f"{flag} {self.example}".strip()) from None


def count(quantity: str, least: int = 1, most: int = numbers.MOST, example: int | None = None) -> OptionType:
    """A whole number of things or units, from `least` to `most`."""
    word = str(least if example is None else example)
    return OptionType(
        lambda text: _within(int(_matching("[0-9]{1,9}", text)), least, most),
        f"number of {quantity}",
        f"a whole number from {least} to {most}",
        word,
    )


def duration(unit: str, least: float, most: float, example: str) -> OptionType:
    """A number of minutes or seconds, with at most three digits after the point."""
    return OptionType(
        lambda text: _within(float(_matching(r"[0-9]{1,5}(\.[0-9]{1,3})?", text)), least, most),
        f"duration in {unit}",
        f"{unit} from {least:g} to {most:g}",
        example,
    )


def one_of(*words: str) -> OptionType:
    """One of these words."""
    return OptionType(lambda text: words[words.index(text)], "known word", f"one of {', '.join(words)}", words[0])


def _matching(pattern: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise ValueError
    return text


def _within(number: Any, least: float, most: float) -> Any:
    if not least <= number <= most:
        raise ValueError
    return number


def _names(text: str) -> tuple[str, ...]:
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    if not names:
        raise ValueError
    return names


NAMES = OptionType(_names, "list of names", "one name, or several with commas between them", "driver,limits")

SCHEDULER = OptionType(
    lambda text: _matching(r"(tcp|tls)://[^/\s]+:\d+", text),
    "address of a Dask scheduler",
    "tls://HOST:PORT, or tcp://HOST:PORT; dask scheduler prints its own",
    "tls://10.0.0.5:8786",
)


def _wheels(text: str) -> str:
    if text not in ("fetch", "none") and not Path(text).expanduser().is_dir():
        raise ValueError
    return text


WHEELS = OptionType(_wheels, "directory", "a directory with wheels, fetch, or none", "fetch")


def _watts(text: str) -> int:
    watts = int(_matching(r"[0-9]{1,6} *(w|watts?)?", text.lower()).rstrip(" wats"))
    if watts:
        _within(watts, 50, 20000)
    return watts


WATTS = OptionType(_watts, "number of watts of a power supply", "watts from 50 to 20000, such as 1600", "1600")

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _time(text: str) -> datetime.datetime:
    if span := re.fullmatch(r"(\d{1,6})([mhdw])", text):
        return datetime.datetime.now().astimezone() - datetime.timedelta(**{_UNITS[span[2]]: int(span[1])})
    return datetime.datetime.fromisoformat(text).astimezone()


TIME = OptionType(_time, "time", "7d, 12h, 30m, 4w, or a date such as 2026-11-14", "7d")


def _batch_sizes(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        _within(int(_matching(r"\d{1,6}%?", word).rstrip("%")), 1, 100 if "%" in word else numbers.MOST)
    return words


BATCH_SIZES = OptionType(
    _batch_sizes, "list of batch sizes", "numbers of hosts, or percents of them up to 100 %", "1,10%,100%"
)
"""Its value is a tuple of texts such as `1` and `10%`."""
