"""`invoke verify --watch`: runs the checks of hosts repeatedly, also across reboots and power cycles."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from rigwright.checks import Finding, ranked
from rigwright.core.process import streams
from rigwright.engine import verify
from rigwright.engine.host_run import HostRun
from rigwright.engine.report import CheckResult
from rigwright.fleet import pool

EVERY_S = 3.0
Shown = dict[tuple[str, str], Finding]


def watch(runs: Sequence[HostRun], text: Any) -> None:
    """Shows the findings of the checks until Ctrl-C, or until nobody reads them any more: on a terminal as a page that
    is redrawn, elsewhere one line for each new or changed finding. A host that does not answer is shown as such and
    connected to again. The history records nothing."""
    terminal = text.console.file.isatty()
    before: dict[str, Shown] = {}
    while True:
        pool.run_hosts(runs, _look)
        if terminal:
            text.console.clear()
        for run in runs:
            name, report = run.host.name, run.report
            if report.error is not None:
                seen = f"does not answer ({report.error.found})"
                fix = "none: the connection is tried again"
                waiting = Finding("host", "unknown", seen, fix=fix, check="watch")
                report = replace(report.with_findings((waiting,)), error=None)
                run.restart()
            if terminal:
                text.findings(report)
            else:
                before[name] = _changes(name, report.findings, before.get(name, {}), text)
        if terminal:
            text.line(f"[dim]{time.strftime('%H:%M:%S')}, again every {EVERY_S:g} s; Ctrl-C ends it[/]")
        if streams.failure(text.console.file):
            return
        time.sleep(EVERY_S)


def _look(run: HostRun) -> Iterator[CheckResult]:
    run.store.forget(everything=True)
    yield CheckResult(ranked(verify.CheckEvaluation(run, run.bound.checks).findings()))


def _changes(host: str, findings: Sequence[Finding], before: Shown, text: Any) -> Shown:
    """Writes a line for each finding that is new, has changed or is gone; returns the findings shown now."""
    now = {(finding.check, finding.subject): finding for finding in findings}
    clock = time.strftime("%H:%M:%S")
    for key, finding in now.items():
        if before.get(key) != finding:
            fix = f"; {finding.fix}" if finding.fix and finding.verdict in ("fail", "warn") else ""
            text.plain(f"{clock} {host} {finding.verdict} {finding.subject}: {finding.seen}{fix}")
    for key, finding in before.items():
        if key not in now and now.keys() != {("watch", "host")} and key != ("watch", "host"):
            text.plain(f"{clock} {host} gone {finding.subject}: {finding.seen}")
    return now
