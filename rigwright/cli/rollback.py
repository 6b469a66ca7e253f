"""`invoke rollback`: makes a host what it was before a run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from rigwright.cli import runner
from rigwright.cli.options import RollbackOptions
from rigwright.cli.remove import take_back
from rigwright.core.errors import UsageError
from rigwright.core.numbers import count
from rigwright.core.program_name import program_name
from rigwright.engine.host_report import FactsResult
from rigwright.facts import run_record
from rigwright.facts.plain import plain
from rigwright.fleet import pool
from rigwright.fleet.host_job import HostJob
from rigwright.report.labels import as_is


def rollback(options: RollbackOptions) -> int:
    """Plans, asks, and goes back; returns the exit code. Raises UsageError unless --host names a host."""
    from rigwright.engine import rollback as engine

    if not options.host:
        name = f"{program_name()} rollback --host NAME"
        raise UsageError("--host", "it is not given", "the hosts that are to go back", name)
    engine.require_run(options.to, options.host)
    if options.list:
        return runner.run(options, lambda _run_id: runner.HostCommand(options, _list, quiet=True))
    playbook = runner.playbook(options.playbook, "rollback")
    act = partial(_rollback, options=options)
    command = runner.HostCommand(options, act, playbook, options.tag_names, options.disrupt)
    return runner.run(options, lambda _run_id: command)


def _rollback(jobs: list[HostJob], text: Any, options: RollbackOptions) -> None:
    from rigwright.engine.rollback import aimed

    for job in jobs:
        job.bound = aimed(job.bound, options.to)
    nothing = "nothing to take back"
    take_back(jobs, text, question="Go back?", activity="going back", nothing=nothing, yes=options.yes)


def _read(job: HostJob) -> Iterator[FactsResult]:
    yield FactsResult({run_record.runs.name: plain(job.run.value(run_record.runs))})


def _list(jobs: list[HostJob], text: Any) -> None:
    """The runs that each host remembers, the last one first."""
    pool.run_hosts(jobs, _read, activity="reading")
    for job in jobs:
        runs = job.report.facts.get(run_record.runs.name, ())
        if job.report.error is not None:
            continue
        text.line(f"[bold]{as_is(job.host.name)}[/]: {count(len(runs), 'run')} to go back before")
        for run in reversed(runs):
            how = "" if run["done"] else ", did not end"
            how += f", a rollback to before {run['to']}" if run["to"] else ""
            how += "" if run["here"] else ", of another installation"
            how += "" if run["sound"] else ", damaged"
            text.plain(f"  {run['run']}  {run['time'].replace('T', ' ').removesuffix('Z')} UTC{how}")
