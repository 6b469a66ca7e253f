"""The record on this machine of a command that continued after a reboot which it had ordered."""

from __future__ import annotations

import re

from msgspec import Struct

from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.core.host_folders import STATE
from rigwright.facts import Fact
from rigwright.facts.run_record import run_id

FOLDER = f"{STATE}/continuation"
UNIT_NAME = "rigwright-continue.service"
UNIT = f"/etc/systemd/system/{UNIT_NAME}"
PROGRAM = "/etc/rigwright/continue.sh"
MESSAGE = "/etc/motd.d/rigwright"
"""The line that the next login shows."""
LOG = "/var/log/rigwright-continue.log"


class Continuation(Struct, frozen=True):
    """A command that continues after a reboot. `armed`: its unit is there, so it has not ended; `boots`: the number of
    boots after which it continued; `why`: the reason of the last reboot. Otherwise the end of `run`: its time, exit
    code and words."""

    armed: bool
    run: str = ""
    at: str = ""
    code: int = 0
    how: str = ""
    boots: int = 0
    why: str = ""


_READ = f"""
if [ -e {UNIT} ]; then
  echo armed; head -c 9 {FOLDER}/boots 2>/dev/null | head -n 1 | grep . || echo 0
  head -c 4000 {FOLDER}/why 2>/dev/null; echo
elif [ -e {FOLDER}/ended ]; then echo ended; head -c 1000 {FOLDER}/ended
else echo none; fi
"""


def _continuation(result: Result) -> Continuation | None:
    kind, *lines = result.lines or [""]
    if kind == "none":
        return None
    if kind == "armed" and lines:
        why = one_line(lines[1]) if len(lines) > 1 else ""
        return Continuation(True, boots=int(lines[0]) if re.fullmatch("[0-9]{1,8}", lines[0]) else 0, why=why)
    if kind == "ended" and len(lines) >= 4 and run_id(lines[0]) and re.fullmatch("[0-9]{1,3}", lines[2]):
        return Continuation(False, lines[0], one_line(lines[1])[:40], int(lines[2]), one_line(lines[3])[:200])
    raise ValueError("no record of a continuation")


continuation: Fact[Continuation | None] = Fact("continuation.continuation", script(_READ, reads=True), _continuation)
"""The command that continues, or continued, after a reboot of the machine that it runs on; None without one."""
