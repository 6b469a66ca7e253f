"""`invoke plan`: shows what provision would change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rigwright.cli import runner
from rigwright.cli.options import PlanOptions

if TYPE_CHECKING:
    from rigwright.fleet.host_job import HostJob


def plan(options: PlanOptions) -> int:
    """Prints the plan of every host; returns the exit code, 2 when there is something to change."""

    playbook = runner.playbook(options.playbook, "provision")
    after = partial(_hint_at_training, options=options)
    command = runner.HostCommand(options, _plan, playbook, options.tag_names, afterwards=after)
    return runner.run(options, lambda _run_id: command)


def _plan(jobs: list[HostJob], text: Any) -> None:
    from rigwright.fleet import actions, pool

    pool.run_hosts(jobs, actions.plan_or_fail, activity="planning", reads=True)
    text.plans([job.report for job in jobs if job.report.error is None])


def _hint_at_training(jobs: list[HostJob], text: Any, options: PlanOptions) -> None:
    from rigwright.cli import train_hint

    if not options.playbook:
        train_hint.say((job.host for job in jobs if job.report.error is None), text, "plan")
    runner.warn_of_age(text)
