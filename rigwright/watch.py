"""Looks at hosts again and again, also across reboots and power cycles: for somebody who has the machine open."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rigwright import fleet, verify
from rigwright.checks import Finding, ranked
from rigwright.errors import RigwrightError
from rigwright.fleet import Work

EVERY_S = 3.0
Shown = dict[tuple[str, str], Finding]


def watch(work: Sequence[Work], text: Any, terminal: bool) -> None:
    """The checks' findings are shown until somebody interrupts: on a terminal as a page that is drawn anew, elsewhere a line for
    each finding that is new or has changed. A host that does not answer is said to, and waited for. Nothing is remembered."""
    before: dict[str, Shown] = {}
    while True:
        fleet.run_hosts(work, _look)
        if terminal:
            text.console.clear()
        for one in work:
            name = one.bound.host.name
            if one.report.error is not None:
                one.report.findings = (_waiting(one.report.error),)
                one.report.error = None
                one.run.transport.close()
            if terminal:
                text.findings(one.report)
            else:
                before[name] = _changes(name, one.report.findings, before.get(name, {}), text)
        if terminal:
            text.line(f"[dim]{time.strftime('%H:%M:%S')}, again every {EVERY_S:g} s; Ctrl-C ends it[/]")
        time.sleep(EVERY_S)


def _look(one: Work) -> None:
    one.run.store.forget(everything=True)
    one.report.findings = ranked(verify.findings(one.run, one.bound.checks))


def _waiting(error: RigwrightError) -> Finding:
    return Finding("watch", "host", "unknown", f"does not answer ({error.found})", fix="nothing: it is waited for")


def _changes(host: str, findings: Sequence[Finding], before: Shown, text: Any) -> Shown:
    """Says what is new or has changed, and what is gone; returns what is shown now."""
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
