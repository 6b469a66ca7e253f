"""`invoke remove`: takes away what rigwright put on a host."""

from __future__ import annotations

from functools import partial
from typing import Any

from rigwright.cli import runner
from rigwright.cli.options import RemoveOptions
from rigwright.core.errors import UsageError
from rigwright.core.numbers import count
from rigwright.core.program_name import program_name
from rigwright.fleet import actions, pool
from rigwright.fleet.host_job import HostJob
from rigwright.report.labels import as_is


def remove(options: RemoveOptions) -> int:
    """Plans, asks, and removes; returns the exit code. Raises UsageError unless --host names a host."""
    if not options.host:
        raise UsageError(
            "--host",
            "it is not given",
            "the hosts from which everything is to be removed",
            f"{program_name()} remove --host NAME",
        )
    playbook = runner.playbook(options.playbook, "remove-driver" if options.driver else "remove")
    act = partial(_remove, options=options)
    command = runner.HostCommand(options, act, playbook, options.tag_names, options.disrupt)
    return runner.run(options, lambda _run_id: command)


def _remove(jobs: list[HostJob], text: Any, options: RemoveOptions) -> None:
    pool.run_hosts(jobs, actions.plan_or_fail, activity="planning")
    alive = [job for job in jobs if job.report.error is None]
    text.plans([job.report for job in alive])
    if any(job.report.status == "pending" for job in alive):
        runner.consent(options.yes, "Remove all this?")
    pool.run_hosts(alive, actions.apply_host, activity="removing")
    for job in alive:
        if job.report.error is None:
            changed = count(job.report.changes, "change") if job.report.changes else "nothing to remove"
            text.line(f"[bold]{as_is(job.host.name)}[/]: {changed}")
