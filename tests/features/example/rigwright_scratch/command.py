"""`rigwright scratch.room`: shows the free room of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rigwright.cli import runner
from rigwright.engine.report import FactsResult
from rigwright.fleet import pool
from rigwright.fleet.host_job import HostJob
from rigwright_scratch.facts import room_gib
from rigwright_scratch.options import RoomOptions


def room(options: RoomOptions) -> int:
    """Prints the room of every host; returns the exit code."""
    fact = room_gib(options.path)

    def read(job: HostJob) -> Iterator[FactsResult]:
        yield FactsResult({fact.name: job.run.value(fact)})

    def act(jobs: list[HostJob], text: Any) -> None:
        pool.run_hosts(jobs, read, reads=True)
        for job in jobs:
            if fact.name in job.report.facts:
                text.plain(f"{job.host.name}: {job.report.facts[fact.name]} GiB free in {options.path}")

    return runner.run(options, lambda _run_id: runner.HostCommand(options, act))
