"""The programs of rigwright that run on a host independently of the command that started them.

Each runs in a systemd unit that BEGIN starts. The unit's description has the program, its owner, start, time limit and
action at its end, and disappears with it. A command that follows the program touches /run/UNIT/watched;
/run/UNIT/follower has the owner of a later command that follows it.
"""

from __future__ import annotations

import re

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.facts import Fact

JOB = "rigwright-job-"
"""The beginning of the names of units of jobs (engine/jobs.py)."""

BEGIN = """
begin() {
  read -r up _ </proc/uptime; description="$1; ${up%%.*}"; shift
  systemd-run --quiet --description="$description" --setenv=LC_ALL=C \\
    --setenv=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
"""
"""Shell function: `begin DESCRIPTION WORD ...` is systemd-run with these words and a text from `description`."""


class OwnProgram(Struct, frozen=True):
    """A running program. `owner`: the run that follows it, as in run_owner. `key`: equal for programs that measure the
    same, otherwise "".

    `age_s`: since its start. `left_s`: until its time limit; None: without one. `alone_s`: until it ends if nobody
    follows it; None: that does not end it. `at_end`: its action at its end: `puts 200 W back`.
    """

    unit: str
    name: str
    owner: str
    key: str
    age_s: int
    left_s: int | None
    alone_s: int | None
    at_end: str
    pids: tuple[int, ...] = ()

    @property
    def run(self) -> str:
        """The id of the run that follows it."""
        return self.owner.partition(" ")[0]


def description(name: str, owner: str, limit_s: int = 0, key: str = "", watched_s: int = 0, at_end: str = "") -> str:
    """The description of a program's unit, without its start. `limit_s` 0: without a limit. `watched_s`: the seconds
    without a follower after which the program ends, 0: it does not."""
    texts = (name, owner, key, str(limit_s), str(watched_s), at_end)
    return "; ".join(("rigwright", *(re.sub(r"[^\w .,:@?()/+-]", "_", text, flags=re.ASCII)[:700] for text in texts)))


_TEXT, _OWNER = r"[\w .,:@?()/+-]", r"[\w.-]{1,100}(?: [\w.@?+-]{1,560}){3,5}"
_DESCRIPTION = lazy_re.compile(
    rf"(?a)rigwright; (?P<name>{_TEXT}{{1,700}}); (?P<owner>{_OWNER}); (?P<key>\w{{0,64}}); (?P<limit>\d{{1,9}});"
    rf" (?P<watched>\d{{1,9}}); (?P<at_end>{_TEXT}{{0,700}}); (?P<since>\d{{1,12}})"
)
_FOLLOWER = lazy_re.compile(f"(?a){_OWNER}")

_ASK = r"""
cd /run/systemd/transient 2>/dev/null || exit 0
set -- rigwright-*.service; [ -e "$1" ] || exit 0
shown=$(systemctl show -p Id -p SubState -p Description -- "$@") || exit 1
printf '%s\n\n' "$shown"
case $shown in *SubState=running*|*SubState=st[ao]*|*SubState=final*) ;; *) exit 0;; esac
read -r up _ </proc/uptime; echo "up ${up%%.*}"
for unit; do
  at=/run/rigwright${unit#rigwright}; at=${at%.service}
  [ ! -e "$at/watched" ] || echo "touched $unit $(($(date +%s) - $(stat -c %Y "$at/watched")))"
  [ ! -e "$at/follower" ] || echo "follower $unit $(head -n 1 "$at/follower" | head -c 700)"
done
grep -soE '/rigwright-[a-z0-9-]+\.service$' /proc/[0-9]*/cgroup |
  sed -n 's,^/proc/\([0-9]*\)/cgroup:/\(.*\),pid \2 \1,p'
:
"""
_AT_WORK = ("running", "start", "stop", "final")


def _programs(result: Result) -> tuple[OwnProgram, ...]:
    if result.code != 0:
        reason = result.error_text[:200] or "no answer"
        raise ValueError(f"systemd does not say which programs of rigwright run: {reason}")
    shown, _, rest = result.text.rpartition("\n\n")
    marks: dict[tuple[str, str], list[str]] = {}
    for line in host_text.lines(rest):
        kind, _, more = line.partition(" ")
        unit, _, value = more.partition(" ")
        marks.setdefault((kind, unit), []).append(value)
    up = next((host_text.integer(unit) for kind, unit in marks if kind == "up"), 0)
    units = (dict(line.partition("=")[::2] for line in host_text.lines(block)) for block in shown.split("\n\n"))
    return tuple(program for unit in units if (program := _program(unit, marks, up)))


def _program(unit: dict[str, str], marks: dict[tuple[str, str], list[str]], up: int) -> OwnProgram | None:
    """The program of a unit; None for a unit that does not run, or was not started with BEGIN."""
    name = unit.get("Id", "").removesuffix(".service")
    if not unit.get("SubState", "").startswith(_AT_WORK):
        return None
    words = _DESCRIPTION.fullmatch(unit.get("Description", ""))
    if words is None:
        if name.startswith(JOB):
            raise ValueError(f"the job {name} runs, and nothing says whose it is")
        return None
    touched, followers, pids = (marks.get((kind, f"{name}.service"), []) for kind in ("touched", "follower", "pid"))
    age_s, limit_s, watched_s = max(0, up - int(words["since"])), int(words["limit"]), int(words["watched"])
    left_s = max(0, limit_s - age_s) if limit_s else None
    touched_s = host_text.integer(touched[0]) if touched else age_s
    alone_s = max(0, min(watched_s - touched_s, left_s or watched_s)) if watched_s else None
    owner = next(filter(_FOLLOWER.fullmatch, followers), words["owner"])
    numbers = tuple(map(host_text.integer, pids))
    return OwnProgram(name, words["name"], owner, words["key"], age_s, left_s, alone_s, words["at_end"], numbers)


at_work: Fact[tuple[OwnProgram, ...]] = Fact("own_programs.at_work", script(_ASK, reads=True), _programs)
"""The running programs. Unreadable if systemd does not answer."""
