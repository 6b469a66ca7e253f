"""Reads what ipmitool prints: sensors (`sdr`, `sdr elist`, `sensor`, also with -c) and the event log (`sel`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rigwright.checks import Finding, of_symptom
from rigwright.checks.supplies import FAILED, unit_of
from rigwright.core import lazy_re
from rigwright.core.numbers import count

MOST_SENSORS = 1024
_STATES = r"(?:ok|ns|na|nc|cr|nr|lnc|lcr|lnr|unc|ucr|unr)"
_SENSOR = lazy_re.compile(
    rf"[^|,]{{1,40}}(?:,[^|,]{{0,40}}){{1,2}},{_STATES}(?:,|$)"
    rf"|[^|,]{{1,40}}\|[^|]{{1,40}}(?:\|[^|]{{1,40}})?\| {{0,12}}{_STATES} {{0,12}}(?:\||$)"
)
_EVENT = lazy_re.compile(r" {0,8}[0-9a-f]{1,4} \| (?:\d\d/\d\d/\d{2,4}|Pre-Init) ")
_OF_SUPPLY = lazy_re.compile(r"(?:ps|psu|power suppl)", re.IGNORECASE)


class IpmiReader:
    """Reads such lines from all lines of a text."""

    is_searched = True

    def __init__(self) -> None:
        self._sensors = self._events = 0
        self._supplies: dict[str, tuple[int, str]] = {}

    def feed(self, number: int, line: str) -> bool:
        """Whether the line is part of such a text."""
        if _EVENT.match(line):
            self._events += 1
            return True
        if not _SENSOR.match(line):
            return False
        self._sensors += 1
        name, *words = (word.strip() for word in line.split("|" if "|" in line else ","))
        entity = next((word for word in words if word.startswith("10.") and word[3:].isdecimal()), "")
        says = words[words.index(entity) + 1 :] if entity in words else words[3:]
        if (entity or _OF_SUPPLY.match(name)) and says and len(self._supplies) < MOST_SENSORS:
            is_named = not entity or any(character.isdecimal() for character in unit_of(name))
            key = name if is_named else f"supply {entity} {name}"
            self._supplies.setdefault(key, (number, ", ".join(filter(None, says))))
        return True

    def parts(self) -> Iterator[str]:
        """What was read, in words."""
        if self._sensors:
            yield f"{count(self._sensors, 'sensor')} of ipmitool"
        if self._events:
            yield f"{count(self._events, 'event')} of ipmitool sel"

    def findings(self) -> Iterator[tuple[int, Finding]]:
        """The supplies that report a failure, each with its line."""
        for name, (line, words) in self._supplies.items():
            if FAILED.search(words):
                yield line, of_symptom("power.supply_lost", name, words, "presence, and no failure", "host")
