"""The history as text: a table of runs, one run, and the changes of a host."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from rigwright.core import features
from rigwright.core.numbers import count
from rigwright.history import Changed, RunSummary
from rigwright.report.labels import as_is, local_time
from rigwright.report.tables import with_columns, write
from rigwright.report.terminal import SIGN, VERDICT, before_after, simulated_mark
from rigwright.report.wrapping import hanging

_BAD = ("failed", "unreachable")


def runs(console: Console, summaries: Sequence[RunSummary]) -> None:
    """Writes a line for each run."""
    table = with_columns("run", "when", "command", "hosts", "result", wrap=("hosts", "result"))
    for run in summaries:
        names = [host.name for host in run.hosts]
        hosts = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        table.add_row(run.id, local_time(run.started), run.command, as_is(hosts), _result(run))
    write(console, table)


def _result(run: RunSummary) -> str:
    """The result of a run in a few words: the hosts in each bad state, findings and changes, else ok."""
    states = [host.status for host in run.hosts]
    counts = {word: f"{states.count(word)} of {len(states)} " if len(states) > 1 else "" for word in _BAD}
    words = [f"[bold red]{number}{word}[/]" for word, number in counts.items() if word in states]
    failed, changes = sum(host.failed for host in run.hosts), sum(host.changes for host in run.hosts)
    words += [f"[red]{count(failed, 'finding')}[/]"] if failed else []
    words += [count(changes, "change")] if changes else []
    words += ["changes pending"] if "pending" in states and not words else []
    words += ["interrupted"] if run.exit_code == 130 else []
    return ", ".join(words) or ("[green]ok[/]" if run.exit_code == 0 else f"exit {run.exit_code}")


def run(console: Console, document: dict[str, Any]) -> None:
    """Writes one run with the failed steps, changes and findings of each host; passed checks are counted."""
    began, ended = (datetime.datetime.fromisoformat(document[key]) for key in ("started", "ended"))
    times = f"{local_time(began)}, {(ended - began).total_seconds():.1f} s"
    hanging(console, f"[bold]{as_is(document['run'])}[/]  {document['command']}  {times}, exit {document['exit_code']}")
    files = [f"{word} {as_is(document[word])}" for word in ("playbook", "inventory") if document[word]]
    hanging(console, f"[dim]{', '.join(files)}[/]")
    for name, host in document["hosts"].items():
        _host(console, name, host)


def _host(console: Console, name: str, host: dict[str, Any]) -> None:
    colour = "bold red" if host["status"] in _BAD else "green"
    mark = simulated_mark(host["simulated"])
    hanging(console, f"\n[bold]{as_is(name)}[/]  {as_is(host['address'])}  [{colour}]{host['status']}[/]{mark}")
    if host["error"]:
        hanging(console, f"  [bold red]error[/] {as_is(host['error']['where'])}: {as_is(host['error']['found'])}")
    for step in host["steps"]:
        if step["status"] in ("failed", "unknown"):
            hanging(console, f"  [bold red]{step['status']}[/]  {as_is(step['name'])}  [dim]{as_is(step['reason'])}[/]")
    for change in host["changes"]:
        sign, arrow = SIGN[change["action"]], before_after(change["before"], change["after"])
        not_done = "" if change["done"] else "  [yellow]not done[/]"
        hanging(console, f"  {sign} {as_is(change['subject'])}  {arrow}{not_done}", 6)
    for finding in host["findings"]:
        if finding["verdict"] != "pass":
            verdict, subject, seen = VERDICT[finding["verdict"]], as_is(finding["subject"]), as_is(finding["seen"])
            expected = f"  [dim]expected {as_is(finding['expected'])}[/]" if finding["expected"] else ""
            hanging(console, f"  {verdict}  {subject}: {seen}{expected}", 8)
    for show in features.functions("history", "show"):
        show(console, host)
    passed = sum(finding["verdict"] == "pass" for finding in host["findings"])
    steps = count(host["steps_planned"], "step")
    hanging(console, f"  [dim]{steps}, {count(passed, 'check')} passed, {host['seconds']:.1f} s[/]")


def diff(console: Console, host: str, since: datetime.datetime, changes: Sequence[Changed]) -> None:
    """Writes a line for each change, under the run that saw it on the host or made it."""
    if not changes:
        hanging(
            console, f"[bold]{as_is(host)}[/]: nothing that the history keeps has changed since {local_time(since)}"
        )
        return
    for (run, kind), group in itertools.groupby(changes, key=lambda change: (change.run, change.kind)):
        same = list(group)
        by = f"made by rigwright: {count(len(same), 'change')}" if kind == "change" else "seen on the host"
        hanging(console, f"[bold]{local_time(same[0].at)}[/]  [dim]run {as_is(run)}[/]  {by}", 4)
        for change in same:
            hanging(console, f"  {as_is(change.subject)}  {before_after(change.before, change.after)}", 6)
