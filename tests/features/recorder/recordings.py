"""Recordings for tests: the text of a journal, and what the fact makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rigwright.core.command import Result
from rigwright.core.schema import BusId
from rigwright.facts import parsed
from rigwright.features.recorder.facts import Lines, Recording, unfetched

BOOT, NEXT_BOOT = "1d9c1c14-6f0e-4b7e-9d0a-0a3c5f0f7f01", "2e9c1c14-6f0e-4b7e-9d0a-0a3c5f0f7f02"
T = 1795352601.9
BUS_IDS = ("0000:06:00.0", "0000:07:00.0", "0000:0a:00.0", "0000:0b:00.0")
SLOTS = {BusId(bus_id): f"SXM2-{number}" for number, bus_id in enumerate(BUS_IDS, 1)}

Line = dict[str, Any]


def header(gpus: int = 4, hz: float = 10, **changed: Any) -> Line:
    """Returns the first line of a journal of so many V100."""
    described = [
        {"index": at, "bus_id": bus_id, "uuid": f"GPU-5a1c0000-000{at}", "name": "Tesla V100-SXM2-16GB",
         "limit_w": 300.0, "power": "instant"}
        for at, bus_id in enumerate(BUS_IDS[:gpus])
    ]  # fmt: skip
    made = {
        "schema": 1,
        "boot_id": BOOT,
        "started": "2026-11-22T13:03:20Z",
        "utc_offset_s": 3600,
        "hz": hz,
        "power": "instant",
    }
    return {**made, "nvml": None, "gpus": described, **changed}


def tick(at_s: float, *gpus: float | str | None, reasons: int = 0, jump_s: float = 0) -> Line:
    """Returns a sample `at_s` seconds after the begin: the watts of each GPU, "hung", "lost" or None."""
    values = [[watts, 1530, 877, 60, None, reasons] if isinstance(watts, float) else watts for watts in gpus]
    return {"t": round(T + at_s + jump_s, 3), "m": round(100 + at_s, 3), "g": values}


def volts(at_s: float, value: float) -> Line:
    """Returns a reading of the 12 V rail."""
    sensors = {
        "rails": {"12V": value},
        "fans": {"FAN1": 7500.0, "FAN2": 8100.0},
        "psu": {},
        "temps": {"Inlet Temp": 22.0},
    }
    return {"t": round(T + at_s, 3), "m": round(100 + at_s, 3), "ipmi": {**sensors, "12V": value}, "from": "ipmi"}


def read(lines: Sequence[Line], first: Line | None = None) -> Recording:
    """Returns the recording that the fact makes of these lines."""
    body = "".join(json.dumps(line) + "\n" for line in [first or header(), *lines])
    head = (
        f"recording r\nboot {NEXT_BOOT}\nbooted 1795352702\nheader {json.dumps(first or header())}\n"
        f"size {len(body)}\nplain\n"
    )
    found = parsed(unfetched, Result(0, (head + body).encode()))
    assert isinstance(found, Recording), found
    return found


def followed(lines: Sequence[Line], first: Line | None = None) -> Lines:
    """Returns the lines as power.watch reads them."""
    made = Lines(json.dumps(first or header()))
    for line in lines:
        made.add(json.dumps(line))
    return made
