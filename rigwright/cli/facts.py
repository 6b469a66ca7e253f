"""`invoke facts`: shows what a host reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.pretty import Pretty

from rigwright.cli import runner
from rigwright.cli.options import FactsOptions
from rigwright.engine.host_report import FactsResult
from rigwright.fleet import pool
from rigwright.fleet.host_job import HostJob
from rigwright.report.labels import as_is
from rigwright.report.tables.facts import SHOWN


def facts(options: FactsOptions) -> int:
    """Prints the facts of every host; returns the exit code."""
    return runner.run(options, lambda _run_id: runner.HostCommand(options, _show))


def _show(work: list[HostJob], text: Any) -> None:
    pool.run_hosts(work, _read)
    for one in work:
        for name, value in one.report.facts.items():
            unavailable = f"[yellow]unavailable: {as_is(str(value))}[/]"
            text.console.print(f"  [bold]{name}[/]", end=" ")
            text.console.print(unavailable if isinstance(value, Exception) else Pretty(value))


def _read(job: HostJob) -> Iterator[FactsResult]:
    """Reads the facts. Raises Unreachable."""
    job.run.read(SHOWN)
    yield FactsResult({fact.name: job.run.store.known[fact] for fact in SHOWN})
