"""`invoke fleet.run --cmd`: one command on many hosts, what they answer alike shown once."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

from rigwright import commands, fleet
from rigwright.errors import UsageError, printable
from rigwright.hostreport import Ran
from rigwright.shell import script
from rigwright.showing import Said

KEPT_BYTES = 64 * 1024
"""What is kept of a command's output, on each host; more than that is for a file on the host."""

_BOUNDED = """exec 3>&1
code=$({ { timeout -k 2 "$3" sh -c "$1" </dev/null 2>&1 3>&- 4>&-; echo $? >&4; } | head -c "$2" >&3; } 4>&1)
exit "${code:-1}"
"""
"""Runs $1 with both its streams as one, passes $2 bytes of them on, and ends with its exit code; a command that goes on writing is
ended by SIGPIPE, one that goes on for $3 seconds by TERM, then KILL."""


def run(cmd: str, host: str, inventory: str, sudo: bool, timeout_s: str, json: str, executor: str = "") -> int:
    """Prints every host's answer, equal ones once; returns the exit code, 1 where the command failed, 3 where a host is away."""

    def check() -> None:
        _seconds(timeout_s)
        if not cmd.strip() or "\0" in cmd:
            todo = "invoke fleet.run --cmd 'uptime -p'"
            raise UsageError(
                "--cmd", "no command" if not cmd.strip() else "a NUL byte in it", "a command, in quotes", todo
            )

    def act(work: list[fleet.Work], text: Any, _said: Said) -> None:
        from rigwright.report import oneoff as report

        limit_s = _seconds(timeout_s)
        fleet.run_hosts(work, partial(_run, cmd=cmd, limit_s=limit_s), doing="running it")
        answers = {one.report.host.name: one.report.ran for one in work if one.report.ran is not None}
        report.show(text.console, answers, limit_s)

    said = Said("fleet.run", host or "all", inventory=inventory, json=json, as_user=not sudo, executor=executor)
    return commands.run(said, act=act, before=check)


def _seconds(text: str) -> float:
    """The time limit that was typed. Raises UsageError."""
    if not re.fullmatch(r"\d{1,5}(\.\d+)?", text.strip()) or not 0 < float(text) <= 86400:
        raise UsageError("--timeout-s", f"'{text}' is no time limit", "seconds, up to 86400")
    return float(text)


def _run(one: fleet.Work, cmd: str, limit_s: float) -> None:
    """The report has what the command printed and how it ended. Raises HostError, Unreachable."""
    order = script(_BOUNDED, cmd, str(KEPT_BYTES + 1), f"{limit_s:g}", timeout_s=math.ceil(limit_s) + 5)
    (answer,) = one.run.transport.run([order], together=True)
    output = answer.stdout[:KEPT_BYTES].decode("utf-8", "replace")
    cut = len(answer.stdout) > KEPT_BYTES
    ended = answer.code if answer.code not in (-1, 124, 137) else None
    one.report.ran = Ran(ended, printable(output), cut)
    one.report.status = "ok" if ended == 0 else "failed"
