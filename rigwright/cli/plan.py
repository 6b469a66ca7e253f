"""`invoke plan`: shows what provision would change."""

from __future__ import annotations

from typing import Any

from rigwright.cli import runner
from rigwright.cli.options import PlanOptions
from rigwright.fleet import actions, pool
from rigwright.fleet.host_job import HostJob


def plan(options: PlanOptions) -> int:
    """Prints the plan of every host; returns the exit code, 2 when there is something to change."""

    def prepare(_run_id: str) -> runner.HostCommand:
        playbook = runner.playbook(options.playbook, "provision")
        return runner.HostCommand(options, _plan, playbook, options.tag_names)

    return runner.run(options, prepare)


def _plan(work: list[HostJob], text: Any) -> None:
    pool.run_hosts(work, actions.plan_or_fail, activity="planning")
    text.plans([one.report for one in work if one.report.error is None])
