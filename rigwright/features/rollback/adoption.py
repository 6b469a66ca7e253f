"""Records that were written under another machine-id, on a host whose disk was copied or that got a new one: its owner
adopts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rigwright.core.errors import HostError
from rigwright.core.numbers import count
from rigwright.engine import lease, run_record
from rigwright.engine.host_run import HostRun
from rigwright.engine.report import FactsResult
from rigwright.facts import run_record as records
from rigwright.facts.plain import plain
from rigwright.facts.run_record import LISTS, Run

STANDING = "run_record.standing"
"""How many of the files that these runs wrote stand as they wrote them, and how many do not."""


def examine(run: HostRun) -> Iterator[FactsResult]:
    """Reads the runs, and how many of the files of those under another machine-id stand as they left them.

    Raises HostError where none does: the system was installed anew, and the records say nothing about it.
    """
    past = run.value(records.runs)
    strange = [record for record in past if record.sound and not record.here]
    standing = (0, 0)
    if strange:
        files = [file for file in run.value(records.written(strange[0].number)).files if file.path not in LISTS]
        as_left = sum(file.ours and file.now.kind != "absent" for file in files)
        standing = (as_left, sum(not file.ours for file in files))
        if not as_left and standing[1]:
            problem = (
                f"{count(len(files), 'file')} of {strange[0].run} and later runs: each was changed or removed since"
            )
            expected = "the disk that they changed; on a system that was installed anew"
            expected += " there is nothing of them to take back"
            fix = "leave the records where they are: the next provision records what is here now"
            raise HostError(run.host.name, problem, expected, fix)
    yield FactsResult({records.runs.name: plain(past), STANDING: list(standing)})


def strangers(facts: Mapping[str, Any]) -> list[Run]:
    """The runs with sound records under another machine-id, of the facts that `examine` has read."""
    return [run for run in records.from_plain(facts[records.runs.name]) if run.sound and not run.here]


def in_words(facts: Mapping[str, Any]) -> list[str]:
    """What `examine` has found, a line each."""
    runs = strangers(facts)
    if not runs:
        return ["all its records are of this installation"]
    as_left, changed = facts[STANDING]
    names = f"{runs[0].run} to {runs[-1].run}" if len(runs) > 1 else runs[0].run
    lines = [f"{count(len(runs), 'run')} under another machine-id: {names}"]
    if as_left or changed:
        lines.append(f"of the files that they wrote {as_left} stand as they left them, {changed} do not")
    return lines


def adopt(run: HostRun) -> Iterator[FactsResult]:
    """Records on the host that these runs changed this installation, under its lease. Raises HostError when another run
    has that."""
    options, transport = run.options, run.transport
    held = lease.take(transport, run.host.name, options.run_id, options.earlier_runs)
    try:
        result = transport.run([run_record.adoption([record.run for record in strangers(run.report.facts)])])[0]
    finally:
        held.release()
    if result.code != 0:
        problem = f"that they are of this disk cannot be recorded: {result.error_text or 'no answer'}"
        raise HostError(run.host.name, problem, "room in /var/lib/rigwright/runs")
    yield FactsResult(run.report.facts)
