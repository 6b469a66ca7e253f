"""`invoke limits`: applies the limits of the GPUs, and shows them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rigwright.cli import runner
from rigwright.cli.options import LimitsOptions
from rigwright.core.numbers import count
from rigwright.engine.limits import LimitsResult

if TYPE_CHECKING:
    from rigwright.engine.host_run import HostRun


def limits(options: LimitsOptions) -> int:
    """Applies the limits, or with --show only reads them, and prints a table; returns the exit code."""

    playbook = runner.playbook(options.playbook, "limits-reset" if options.reset else "limits")
    act = partial(_limits, options=options)
    return runner.run(options, lambda _run_id: runner.HostCommand(options, act, playbook, frozenset(options.tags)))


def _limits(runs: list[HostRun], text: Any, options: LimitsOptions) -> None:
    from rigwright.fleet import actions, pool
    from rigwright.report.labels import as_is
    from rigwright.report.tables import limits as table

    pool.run_hosts(runs, partial(actions.plan_limits, show=options.show), activity="planning")
    if not options.show:
        changes = [change for run in runs for step in run.report.planned for change in step.changes]
        if any(change.disruptive or change.leads_to or change.action != "change" for change in changes):
            text.plans([run.report for run in runs if run.report.error is None])
            runner.consent(options.yes, "Make these changes?")  # the user's own playbook does more than set limits
        pool.run_hosts(runs, actions.apply_limits, activity="applying")
    for run in runs:
        if rows := run.report.last(LimitsResult).rows:
            table.show(text.console, rows)
        if run.report.error is None:
            changed = count(run.report.changes, "change") if run.report.changes else "nothing to change"
            text.line(f"[bold]{as_is(run.host.name)}[/]: {'drift' if run.report.status == 'pending' else changed}")
