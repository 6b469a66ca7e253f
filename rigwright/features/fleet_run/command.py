"""`invoke fleet.run --cmd`: one command on many hosts, equal outputs are shown once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from rigwright.cli import runner
from rigwright.core.command import script
from rigwright.core.control_characters import visible
from rigwright.core.errors import UsageError
from rigwright.engine.host_run import HostRun
from rigwright.features.fleet_run import table
from rigwright.features.fleet_run.options import FleetRunOptions
from rigwright.features.fleet_run.result import CommandResult
from rigwright.fleet import pool

KEPT_BYTES = 64 * 1024
"""The part of the output of each host that is kept; the rest is cut off."""

_BOUNDED = """exec 3>&1
code=$({ { timeout -k 2 "$3" sh -c "$1" </dev/null 2>&1 3>&- 4>&-; echo $? >&4; } | head -c "$2" >&3; } 4>&1)
exit "${code:-1}"
"""
"""Runs $1 with stdout and stderr joined, prints the first $2 bytes, and exits with its exit code. SIGPIPE ends a
command that writes more; TERM, then KILL end one that runs longer than $3 seconds."""


def fleet_run(options: FleetRunOptions) -> int:
    """Prints the output of every host, equal ones once; returns the exit code."""

    def prepare(_run_id: str) -> runner.HostCommand:
        limit_s = options.timeout_s
        if not options.cmd.strip() or "\0" in options.cmd:
            problem = "a NUL byte in it" if options.cmd.strip() else "no command"
            raise UsageError("--cmd", problem, "a command, in quotes", "invoke fleet.run --cmd 'uptime -p'")

        def act(runs: list[HostRun], _text: Any) -> None:
            pool.run_hosts(runs, partial(_run, cmd=options.cmd, limit_s=limit_s), activity="running it")

        def after(runs: list[HostRun], text: Any) -> None:
            answers = {run.host.name: ran for run in runs if (ran := run.report.get(CommandResult)) is not None}
            table.show(text.console, answers, limit_s)

        all_hosts = replace(options, host=options.host or "all")
        return runner.HostCommand(all_hosts, act, root=options.sudo, tolerant=True, quiet=True, afterwards=after)

    return runner.run(options, prepare)


def _run(run: HostRun, cmd: str, limit_s: float) -> Iterator[CommandResult]:
    bounded = script(_BOUNDED, cmd, str(KEPT_BYTES + 1), f"{limit_s:g}", timeout_s=math.ceil(limit_s) + 5)
    (answer,) = run.transport.run([bounded], together=True)
    output = answer.stdout[:KEPT_BYTES].decode("utf-8", "replace")
    code = None if answer.too_late else answer.code
    yield CommandResult(code, visible(output), cut=len(answer.stdout) > KEPT_BYTES)
