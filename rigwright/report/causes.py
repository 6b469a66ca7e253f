"""Texts of many hosts that have one cause: they are equal but for quantities and places."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from rigwright.core.shortening import shortened

_QUANTITY = re.compile(
    r"(?<![\w.:-])\d+(?:\.\d+)?"
    r"(?=\s?%|\s?(?:°C|C|W|kW|MHz|KiB|MiB|GiB|TiB|GB/s|TFLOPS|x|times?|errors?|rows?|pages?|modules?|lanes?|days?|hours?|min|ms|s|hosts?|GPUs?|packages?|files?)\b)"
)
"""A number with a unit, or of things. Numbers without one name something: Xid 79, driver 535."""
_PLACE = re.compile(
    r"\b(?:[0-9a-f]{4,8}:[0-9a-f]{2}:[01]?[0-9a-f]\.[0-7]|GPU-[0-9a-f]{8}[0-9a-f-]*|\d{1,3}(?:\.\d{1,3}){3}|SHA256:[\w+/=]+"
    r"|\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?)"
)
"""What differs between hosts that have the same problem: bus ids, UUIDs, addresses, keys, times."""
_RELEASE = re.compile(r"\b(\d{3})\.\d{2,3}\.\d{2}\b")
"""A release of a driver: those of one branch have the same problems."""
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_AT = re.compile(rf"(?:\b[A-Z][A-Z0-9]{{1,7}}-\d+ )?{_PLACE.pattern}(?: \(serial [^)]*\))?")
SHOWN = 3
"""The number of different values of one cause that are listed."""


def cause_of(text: str, host: str = "") -> str:
    """The text without quantities, places, the release within a driver branch, and the name of its host."""
    named = text.replace(host, "HOST") if host else text
    return _QUANTITY.sub("#", _RELEASE.sub(r"\1", _PLACE.sub("@", named)))


def common(texts: Sequence[str]) -> str:
    """One text for texts of one cause: different quantities become a range, `83 to 91 C`. Otherwise the most frequent
    text."""
    counted = Counter(texts)
    if len({_QUANTITY.sub("#", text) for text in counted}) != 1:
        return counted.most_common(1)[0][0] if counted else ""
    columns = zip(*(_QUANTITY.findall(text) for text in counted), strict=True)
    ends = [(min(column, key=float), max(column, key=float)) for column in columns]
    ranges = iter([least if least == most else f"{least} to {most}" for least, most in ends])
    return _QUANTITY.sub(lambda _match: next(ranges), texts[0])


def variants(texts: Iterable[str]) -> str:
    """The different texts with their counts, the most frequent first: `6.8.0-71 (8), 6.8.0-60 (4) and 2 more`."""
    texts = list(texts)
    if len({_QUANTITY.sub("#", text) for text in texts}) < 2:
        return common(texts)
    counted = Counter(texts).most_common()
    shown = ", ".join(f"{text} ({number})" for text, number in counted[:SHOWN])
    return shown if len(counted) <= SHOWN else f"{shown} and {len(counted) - SHOWN} more"


def without_places(text: str) -> str:
    """The text without bus ids, UUIDs and addresses, and without the position before a bus id."""
    return " ".join(_AT.sub(" ", text).split()).rstrip(":") or "GPU"


LONGEST_NAMES = 100
"""Characters of the names of hosts that a line of text has room for."""


def listed(names: str) -> str:
    """Names of hosts with commas; of many names the first ones and the number of the others."""
    return shortened(names, LONGEST_NAMES)


def without_addresses(text: str) -> str:
    """The text with ADDRESS in place of each IPv4 address."""
    return _ADDRESS.sub("ADDRESS", text)
