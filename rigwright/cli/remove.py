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
from rigwright.engine.host_run import HostRun
from rigwright.fleet import actions, pool
from rigwright.fleet.host_runs import HostAction
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
    command = runner.HostCommand(options, act, playbook, frozenset(options.tags), options.disrupt)
    return runner.run(options, lambda _run_id: command)


def take_back(
    runs: list[HostRun],
    text: Any,
    *,
    question: str,
    activity: str,
    nothing: Callable[[HostRun], str],
    yes: bool,
    plan: HostAction = actions.plan_or_fail,
) -> None:
    """Plans, asks the question, applies, and shows the number of changes on each host, or `nothing`."""
    pool.run_hosts(runs, plan, activity="planning")
    alive = [run for run in runs if run.report.error is None]
    text.plans([run.report for run in alive])
    runner.consent(yes or not any(run.report.status == "pending" for run in alive), question)
    pool.run_hosts(alive, actions.apply_host, activity=activity)
    for run in alive:
        if run.report.error is None:
            changed = count(run.report.changes, "change") if run.report.changes else nothing(run)
            text.line(f"[bold]{as_is(run.host.name)}[/]: {changed}")
