"""The state of systemd units: loaded, active, enabled, and whether the process is older than its files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Command, Result, script
from rigwright.core.control_characters import one_line
from rigwright.facts import Fact, Merger

LIMITS_UNIT, LIMITS_TIMER = "gpu-limits.service", "gpu-limits.timer"
"""The units of rigwright that set the limits of GPUs at every boot, and check them every minute."""
GUARD_UNIT = "gpu-guard.service"
"""The unit of rigwright that watches the GPUs."""
FABRIC_MANAGER_UNIT = "nvidia-fabricmanager.service"


class Unit(Struct, frozen=True):
    """The state of a unit in systemd. `load`: loaded, not-found, masked; `enabled`: enabled, disabled, static, ..."""

    load: str
    active: str
    sub: str
    enabled: str
    needs_reload: bool

    @property
    def at_boot(self) -> str:
        """`enabled` in words. systemd prints `bad` for a unit whose file is gone and whose links remain."""
        return {"": "not there", "bad": "its file is gone"}.get(self.enabled, self.enabled)


_MODULES_LOAD = """
PATH=$PATH:/usr/sbin:/sbin
[ "$(systemctl show -p Result --value systemd-modules-load.service 2>/dev/null)" = success ] && exit 0
journalctl -q --no-pager -b -o cat -n 200 -u systemd-modules-load.service 2>/dev/null | grep -iE "fail|error|refus" |
  grep -i nvidia | tail -n 3; :
"""


module_load_errors = Fact(
    "systemd.module_load_errors",
    script(_MODULES_LOAD),
    lambda result: tuple(one_line(line)[:200] for line in result.lines[:3]),
)
"""The messages of systemd-modules-load about NVIDIA's modules that it could not load in this boot, at most three."""

_FAILED = "systemctl list-units --plain --no-legend --state=failed 2>/dev/null | head -n 50; :"


def _failed(result: Result) -> tuple[str, ...]:
    names = (line.split()[0] for line in result.lines if line.split())
    return tuple(name for name in names if re.fullmatch(r"[\w@.:\\-]{1,200}", name))


failed: Fact[tuple[str, ...]] = Fact("systemd.failed", script(_FAILED, reads=True), _failed)
"""The units that have failed, at most 50."""


STATES = """
set -f; units=$1; shift
state=$(systemctl show \\
  -p LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,MainPID,ActiveEnterTimestampMonotonic \\
  -- $units) || exit
echo "$state"
echo; echo "now=$(date +%s.%N)"; read up rest </proc/uptime; echo "up=$up"
while case $state in *MainPID=*) ;; *) ! :;; esac; do
  state=${state#*MainPID=}; pid=${state%%[!0-9]*}; [ "${pid:-0}" != 0 ] || continue
  case $(readlink "/proc/$pid/exe" 2>/dev/null) in *' (deleted)') echo "deleted=$pid";; esac
done
[ $# = 0 ] || stat -L -c 'ctime %.9Z %n' -- "$@" 2>/dev/null; :
"""
"""Prints the properties of units ($1), the clock, the processes of units whose executable was deleted, and the times
of change of files."""


def unit(name: str) -> Fact[Unit]:
    """The unit's state; a missing unit has `load` not-found."""

    def parse(result: Result) -> Unit:
        values = dict(line.split("=", 1) for line in result.lines if "=" in line)
        load, active, sub = (values[key] for key in ("LoadState", "ActiveState", "SubState"))
        return Unit(load, active, sub, values.get("UnitFileState", ""), values.get("NeedDaemonReload") == "yes")

    return Fact(f"systemd.unit({name})", script(STATES, name, reads=True), parse)


class Running(Struct, frozen=True):
    """Whether a unit's process is older than its files, by the host's clock."""

    active: bool
    needs_reload: bool
    started_s: float
    newest_file_s: float
    deleted_executable: bool

    @property
    def current(self) -> bool:
        """Whether the process is newer than its files; True for a unit that does not run."""
        newer = self.started_s >= self.newest_file_s and not self.deleted_executable
        return not self.needs_reload and (newer or not self.active)


def running(name: str, files: tuple[str, ...]) -> Fact[Running]:
    """Compares the start of a unit with the newest change of `files`. After a clock was set back, the unit is stale."""

    def parse(result: Result) -> Running:
        values = dict(line.split("=", 1) for line in result.lines if "=" in line)
        times = [float(line.split()[1]) for line in result.lines if line.startswith("ctime ")]
        age_s = float(values["up"]) - int(values["ActiveEnterTimestampMonotonic"]) / 1e6
        return Running(
            values["ActiveState"] == "active",
            values["NeedDaemonReload"] == "yes",
            float(values["now"]) - age_s,
            max(times, default=0.0),
            "deleted" in values,
        )

    return Fact(f"systemd.running({name})", script(STATES, name, *files, reads=True), parse)


def _together(commands: Sequence[Command]) -> Command:
    units = " ".join(command.argv[4] for command in commands)
    paths = dict.fromkeys(path for command in commands for path in command.argv[5:])
    return script(STATES, units, *paths, timeout_s=commands[0].timeout_s, reads=True)


def _split(result: Result, commands: tuple[Command, ...]) -> list[Result] | None:
    """The properties of each unit, the clock, and the times of its own files."""
    *parts, rest = result.stdout.split(b"\n\n")
    if result.code or len(parts) != len(commands) or not all(parts):
        return None
    lines = host_text.lines(rest.decode("utf-8", "replace"))
    answers = []
    for part, command in zip(parts, commands, strict=True):
        process = next((line[8:].decode() for line in part.split(b"\n") if line.startswith(b"MainPID=")), "")
        text = ""
        for line in lines:
            ctime_of_own = line.startswith("ctime ") and line.split(" ", 2)[2] in command.argv[5:]
            if ctime_of_own or line.startswith(("now=", "up=")) or line == f"deleted={process}":
                text += f"{line}\n"
        answers.append(Result(0, part.strip(b"\n") + b"\n\n" + text.encode(), result.stderr))
    return answers


def _kind(command: Command) -> bool:
    return command.argv[2:4] == (STATES, "sh") and " " not in command.argv[4]


MERGER = Merger(_kind, _together, _split)
