"""`rigwright scratch.room`: shows the free room of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rigwright.cli import runner
from rigwright.engine.host_run import HostRun
from rigwright.engine.report import FactsResult
from rigwright.fleet import pool
from rigwright_scratch.facts import room_gib
from rigwright_scratch.options import RoomOptions


def room(options: RoomOptions) -> int:
    """Prints the room of every host; returns the exit code."""
    fact = room_gib(options.path)

    def read(run: HostRun) -> Iterator[FactsResult]:
        yield FactsResult({fact.name: run.value(fact)})

    def act(runs: list[HostRun], text: Any) -> None:
        pool.run_hosts(runs, read, reads=True)
        for run in runs:
            if fact.name in run.report.facts:
                text.plain(f"{run.host.name}: {run.report.facts[fact.name]} GiB free in {options.path}")

    return runner.run(options, lambda _run_id: runner.HostCommand(options, act))
