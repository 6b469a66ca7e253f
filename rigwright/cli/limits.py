"""`invoke limits`: applies the limits of the GPUs, and shows them."""

from __future__ import annotations

from functools import partial
from typing import Any

from rigwright.cli import runner
from rigwright.cli.options import LimitsOptions
from rigwright.core.numbers import count
from rigwright.fleet import actions, pool
from rigwright.fleet.host_job import HostJob


def limits(options: LimitsOptions) -> int:
    """Applies the limits, or with --show only reads them, and prints a table; returns the exit code."""

    def prepare(_run_id: str) -> runner.HostCommand:
        playbook = runner.playbook(options.playbook, "limits-reset" if options.reset else "limits")
        return runner.HostCommand(options, partial(_limits, options=options), playbook, options.tag_names)

    return runner.run(options, prepare)


def _limits(work: list[HostJob], text: Any, options: LimitsOptions) -> None:
    pool.run_hosts(work, partial(actions.plan_limits, show=options.show), activity="planning")
    if not options.show:
        changes = [change for one in work for step in one.report.planned for change in step.changes]
        if any(change.disruptive or change.leads_to or change.action != "change" for change in changes):
            text.plans([one.report for one in work if one.report.error is None])
            runner.consent(options.yes, "Make these changes?")  # the user's own playbook does more than set limits
        pool.run_hosts(work, actions.apply_limits, activity="applying")
    for one in work:
        if one.report.rows:
            text.limits(one.report)
        if one.report.error is None:
            done = one.report.changes
            result = (
                "drift" if one.report.status == "pending" else count(done, "change") if done else "nothing to change"
            )
            text.line(f"[bold]{one.host.name}[/]: {result}")
