"""`invoke remove`: takes away what rigwright put on a host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rigwright.cli import runner
from rigwright.cli.options import RemoveOptions
from rigwright.core.errors import UsageError
from rigwright.core.numbers import count
from rigwright.core.process.program_name import program_name
from rigwright.fleet import actions, pool
from rigwright.fleet.host_job import HostAction, HostJob
from rigwright.report.labels import as_is


def remove(options: RemoveOptions) -> int:
    """Plans, asks, and removes; returns the exit code. Raises UsageError unless --host names a host."""
    if not options.host:
        raise UsageError(
            "--host",
            "it is not given",
            "the hosts from which everything is to be removed",
            f"{program_name()} remove{' --driver' if options.driver else ''} --host NAME",
        )
    playbook = runner.playbook(options.playbook, "remove-driver" if options.driver else "remove")
    act = partial(
        take_back,
        question="Remove all this?",
        activity="removing",
        nothing=lambda _job: "nothing to remove",
        yes=options.yes,
    )
    command = runner.HostCommand(options, act, playbook, options.tag_names, options.disrupt)
    return runner.run(options, lambda _run_id: command)


def take_back(
    jobs: list[HostJob],
    text: Any,
    *,
    question: str,
    activity: str,
    nothing: Callable[[HostJob], str],
    yes: bool,
    plan: HostAction = actions.plan_or_fail,
) -> None:
    """Plans, asks the question, applies, and shows the number of changes on each host, or `nothing`."""
    pool.run_hosts(jobs, plan, activity="planning")
    alive = [job for job in jobs if job.report.error is None]
    text.plans([job.report for job in alive])
    runner.consent(yes or not any(job.report.status == "pending" for job in alive), question)
    pool.run_hosts(alive, actions.apply_host, activity=activity)
    for job in alive:
        if job.report.error is None:
            changed = count(job.report.changes, "change") if job.report.changes else nothing(job)
            text.line(f"[bold]{as_is(job.host.name)}[/]: {changed}")
