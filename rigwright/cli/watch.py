"""`invoke verify --watch`: runs the checks of hosts repeatedly, also across reboots and power cycles."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rigwright.checks import Finding, ranked
from rigwright.core.errors import RigwrightError
from rigwright.engine import verify
from rigwright.engine.host_report import CheckResult
from rigwright.fleet import pool
from rigwright.fleet.host_job import HostJob

EVERY_S = 3.0
Shown = dict[tuple[str, str], Finding]


def watch(work: Sequence[HostJob], text: Any) -> None:
    """Shows the findings of the checks until Ctrl-C: on a terminal as a page that is redrawn, elsewhere one line for each new or
    changed finding. A host that does not answer is shown as such and connected to again. The history records nothing."""
    terminal = text.console.file.isatty()
    before: dict[str, Shown] = {}
    while True:
        pool.run_hosts(work, _look)
        if terminal:
            text.console.clear()
        for one in work:
            name, report = one.host.name, one.report
            if report.error is not None:
                report = replace(report, findings=(_waiting(report.error),), error=None)
                one.restart()
            if terminal:
                text.findings(report)
            else:
                before[name] = _changes(name, report.findings, before.get(name, {}), text)
        if terminal:
            text.line(f"[dim]{time.strftime('%H:%M:%S')}, again every {EVERY_S:g} s; Ctrl-C ends it[/]")
        time.sleep(EVERY_S)


def _look(job: HostJob) -> Iterator[CheckResult]:
    job.run.store.forget(everything=True)
    yield CheckResult(ranked(verify.CheckEvaluation(job.run, job.bound.checks).findings()))


def _waiting(error: RigwrightError) -> Finding:
    seen, fix = f"does not answer ({error.found})", "none: the connection is tried again"
    return Finding("host", "unknown", seen, fix=fix, check="watch")


def _changes(host: str, findings: Sequence[Finding], before: Shown, text: Any) -> Shown:
    """Writes a line for each finding that is new, has changed or is gone; returns the findings shown now."""
    now = {(one.check, one.subject): one for one in findings}
    clock = time.strftime("%H:%M:%S")
    for key, one in now.items():
        if before.get(key) != one:
            todo = f"; {one.fix}" if one.fix and one.verdict in ("fail", "warn") else ""
            text.plain(f"{clock} {host} {one.verdict} {one.subject}: {one.seen}{todo}")
    for key, one in before.items():
        if key not in now and now.keys() != {("watch", "host")} and key != ("watch", "host"):
            text.plain(f"{clock} {host} gone {one.subject}: {one.seen}")
    return now
