"""The host's record of the peer-to-peer test: the changes that require it, and the last time that it passed."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.core.errors import InputError
from rigwright.core.host_folders import STATE
from rigwright.core.schema import convert
from rigwright.facts import Fact

T = TypeVar("T")

REQUIRED, PASSED, LOCK = "p2p-test.owed", "p2p-test.passed", "p2p-test.lock"
"""Files in STATE: a line of JSON for each change that requires the test; a line about the last passed test; a lock."""

MOST_LINES = 64
MOST_CHARACTERS = 200
"""The length of a text of the record; longer ones are cut."""

_TIME = lazy_re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z")


class RequiredTest(Struct, frozen=True):
    """A test that a change requires: `since`, its time in UTC (2026-11-22T11:24:32Z); `run`, its id; `after`, the
    change. `single`: also with a single GPU; older versions did not write it."""

    since: str
    run: str
    after: str
    single: bool = True

    def __post_init__(self) -> None:
        _require_time(self.since)


class Passed(Struct, frozen=True):
    """A passed test: its time in UTC, the run, and what it tested. `gpus`: BUS_ID UUID of each; "": unknown."""

    at: str
    run: str
    driver: str
    firmware: str
    gpus: tuple[str, ...]

    def __post_init__(self) -> None:
        _require_time(self.at)


class Record(Struct, frozen=True):
    """The host's record of the test. `damaged`: a part of it could not be read. `checksum`: of the file of required
    tests, "" without one."""

    required: tuple[RequiredTest, ...] = ()
    passed: Passed | None = None
    damaged: bool = False
    checksum: str = ""


def _require_time(text: str) -> None:
    if not _TIME.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no time", "2026-11-22T11:24:32Z")


_READ = f"""
echo record; cd {STATE} 2>/dev/null || exit 0
if [ -f {REQUIRED} ]; then sha256sum <{REQUIRED} | cut -c 1-64; else echo; fi
if [ -f {PASSED} ]; then echo "$(head -c 16384 {PASSED} | tr -d '\\000' | head -n 1)"; else echo; fi
if [ -f {REQUIRED} ]; then head -c 65536 {REQUIRED}; fi
"""


def _record(result: Result) -> Record:
    heading, _, text = result.text.partition("\n")
    if heading != "record":
        raise ValueError("no record")
    checksum, last, *lines = [*text.split("\n"), ""] if text else ["", ""]
    if checksum and not re.fullmatch("[0-9a-f]{64}", checksum):
        raise ValueError(f"{checksum[:80]!r} is no checksum")
    written = [line for line in lines if line.strip()]
    required = [entry for line in written[:MOST_LINES] if (entry := _entry(line, RequiredTest))]
    passed = _entry(last, Passed) if last else None
    damaged = len(required) < len(written) or bool(last and passed is None) or bool(checksum and not written)
    return Record(tuple(required), passed, damaged, checksum)


def _entry(line: str, kind: type[T]) -> T | None:
    """A line of JSON as an instance of a type, its texts on one line and cut; None for another line."""
    try:
        given = host_text.json_value(line)
        if isinstance(given, dict):
            entry: T = convert({key: _harmless(value) for key, value in given.items()}, kind, "the record", "")
            return entry
    except (InputError, KeyError, ValueError, RecursionError):
        pass
    return None


def _harmless(value: Any) -> Any:
    if isinstance(value, list):
        return [_harmless(item) for item in value[:MOST_LINES]]
    return one_line(value)[:MOST_CHARACTERS] if isinstance(value, str) else value


record = Fact("p2p_record.record", script(_READ, timeout_s=60, reads=True), _record)
"""The record of the host; an empty one if no test was run on it."""
