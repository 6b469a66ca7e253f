"""Runs the commands of a step on a host while this run holds the host's lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rigwright.core.command import Command, Result
from rigwright.core.command_failures import failure_in
from rigwright.core.errors import HostError
from rigwright.engine import jobs
from rigwright.engine.lease import Lease


def run(held: Lease, step: str, number: int, commands: Sequence[Command], on_line: Callable[[str], None]) -> None:
    """Runs commands in order: each long command as a job, the others between two jobs as one script.

    `number`: of the change in its step, for the names of its jobs. `on_line` gets the output of the jobs. Raises
    HostError for a command that fails or a lost lease, Unreachable.
    """
    batch: list[Command] = []
    for part, cmd in enumerate(commands):
        if not cmd.long:
            batch.append(cmd)
            continue
        run_batch(held, step, batch)
        batch = []
        _require_success(step, cmd, jobs.run(held.transport, held.owner, step, number * 10 + part, cmd, on_line))
    run_batch(held, step, batch)


def run_batch(held: Lease, step: str, batch: Sequence[Command], then_s: float = 0) -> None:
    """Runs commands as one script. The lease lasts longer than all of them can take, and `then_s` seconds more.

    Raises HostError, Unreachable.
    """
    if batch:
        limit_s = sum(cmd.timeout_s + 6 for cmd in batch) + then_s
        renewed, *results = held.transport.run([held.renewal(limit_s), *batch])
        held.require(renewed)
        for cmd, result in zip(batch, results, strict=False):
            _require_success(step, cmd, result)


def _require_success(step: str, cmd: Command, result: Result) -> None:
    """Raises HostError with the cause of a failed command if its output names one, otherwise with the last line."""
    if result.code == 0:
        return
    text = result.error_text or result.text.strip()
    if failure := failure_in(text):
        raise HostError(step, failure.found, fix=f"{failure.fix}; then run the same command again")
    lines = text.splitlines() or ["nothing"]
    fix = "correct the cause, then run the same command again"
    for line in reversed(lines):
        if line.startswith("E: "):  # of apt
            raise HostError(step, line.removeprefix("E: "), fix=fix)
    outcome = "ran past its limit" if result.code in (124, 137) else f"failed (exit {result.code})"
    shown = str(cmd)[:120] if cmd.argv[0] != "sh" else "its script"
    raise HostError(step, f"{shown} {outcome}: {lines[-1]}", "an exit of 0", fix)
