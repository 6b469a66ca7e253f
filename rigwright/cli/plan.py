"""`invoke plan`: shows what provision would change."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from rigwright.cli import runner
from rigwright.cli.options import PlanOptions
from rigwright.core import host_ranges
from rigwright.core.process.program_name import program_name

if TYPE_CHECKING:
    from rigwright.engine.host_run import HostRun
    from rigwright.inventory.model import Host

OF_TRAIN = ("containers", "training")
"""The variables that only the playbook `train` reads."""


def plan(options: PlanOptions) -> int:
    """Prints the plan of every host; returns the exit code, 2 when there is something to change."""

    playbook = runner.playbook(options.playbook, "provision")
    after = partial(_hint, options=options)
    command = runner.HostCommand(options, _plan, playbook, frozenset(options.tags), afterwards=after)
    return runner.run(options, lambda _run_id: command)


def _plan(runs: list[HostRun], text: Any) -> None:
    from rigwright.fleet import actions, pool

    pool.run_hosts(runs, actions.plan_or_fail, activity="planning", reads=True)
    text.plans([run.report for run in runs if run.report.error is None])


def _hint(runs: list[HostRun], text: Any, options: PlanOptions) -> None:
    if not options.playbook:
        hint_at_training((run.host for run in runs if run.report.error is None), text, "plan")
    runner.warn_of_age(text)


def hint_at_training(hosts: Iterable[Host], text: Any, command: str) -> None:
    """Writes `command` with `--playbook train` for the hosts whose inventory asks for more; nothing if none does."""
    from rigwright.report.labels import as_is

    wanted = {host.name: [name for name in OF_TRAIN if name in host.variables] for host in hosts}
    if names := [name for name, variables in wanted.items() if variables]:
        variables = " and ".join(sorted({variable for name in names for variable in wanted[name]}))
        host = shlex.quote(host_ranges.folded(names).replace(", ", ","))
        line = f"{variables} of the inventory: {program_name()} {command} --host {host} --playbook train"
        text.line(f"[dim]{as_is(line)}[/]")
