"""What the command line says in words, as values: watts, clocks, a price, supplies such as '2x1100'."""

from __future__ import annotations

import re
from dataclasses import replace

from rigwright.catalogue import Rig
from rigwright.catalogue.rigs import Supply
from rigwright.errors import UsageError


def whole(text: str, flag: str, unit: str, example: int) -> int | None:
    """A whole number above 0, or None for "". Raises UsageError; the unit stands in the flag's name, not in the value."""
    if not text:
        return None
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    number = re.match(r"\d+", text)
    todo = f"{flag} {number[0]}" if number and re.fullmatch(r"\d+ *[A-Za-z]+", text) else ""
    raise UsageError(flag, f"'{text}' is no whole number", f"{unit}, without the unit, such as {example}", todo)


def price(text: str) -> float | None:
    """A price per kWh, or None for "". Raises UsageError."""
    if not text:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?|\.\d+", text, re.ASCII) or not 0 < float(text) < 1000:
        point = text.replace(",", ".")
        todo = f"--price-per-kwh {point}" if re.fullmatch(r"\d+\.\d+", point, re.ASCII) else ""
        raise UsageError("--price-per-kwh", f"'{text}' is no price", "a number, such as 0.30", todo)
    return float(text)


def supplied(rig: Rig, text: str) -> Rig:
    """The rig with other supplies: '2x1100', '1600', '2x1100+1x750'. Raises UsageError.

    One entry for each of the rig's keeps what that one feeds and its connectors; else they share a rail.
    """
    found = [_kind(part.strip(), text) for part in text.split("+")]
    old = rig.supplies
    if len(old) == 1 and len(found) == 1 and not old[0].feeds:
        count, watts = found[0]
        connectors = max(1, old[0].connectors * count // old[0].count)
        made = [replace(old[0], watts=watts, count=count, shared=count > 1, connectors=connectors)]
    elif len(old) == len(found) and any(one.feeds for one in old):
        made = [replace(one, count=count, watts=watts) for one, (count, watts) in zip(old, found, strict=True)]
    else:
        alone = len(found) == 1 and found[0][0] == 1
        made = [Supply(watts, count, shared=not alone) for count, watts in found]
    return replace(rig, supplies=tuple(made), sources={**rig.sources, "supplies": "--supplies"})


def _kind(part: str, text: str) -> tuple[int, int]:
    """How many, and watts each."""
    wanted = "COUNTxWATTS without the unit, such as 2x1100, several joined by +"
    match = re.fullmatch(r"(?:(\d{1,3}) *[xX*] *)?(\d{1,6})", part, re.ASCII)
    if not match:
        bare = re.sub(r"(?<=\d) *[wW]\b", "", text)
        todo = f"--supplies {bare}" if bare != text else ""
        raise UsageError("--supplies", f"'{text}' names no supplies", wanted, todo)
    count, watts = int(match[1] or 1), int(match[2])
    if not 1 <= count <= 64 or not 50 <= watts <= 20000:
        raise UsageError("--supplies", f"'{part}': {count} of {watts} W", wanted)
    return count, watts
