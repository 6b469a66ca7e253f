"""The history as text: the table of runs, one run, and what became different on a host."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rigwright.figures import count
from rigwright.history import Changed, HostSummary, RunSummary
from rigwright.report.text import SIGN, VERDICT
from rigwright.report.words import as_is

_BAD = ("failed", "unreachable")


def runs(console: Console, found: Sequence[RunSummary]) -> None:
    """A line for each run, newest first."""
    table = _table("run", "when", "command", "hosts", "result")
    for one in found:
        result = _result(one)
        table.add_row(one.id, _when(one.started), one.command, as_is(_hosts(one.hosts)), result)
    console.print(table)


def _hosts(hosts: Sequence[HostSummary]) -> str:
    names = [one.name for one in hosts]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _result(run: RunSummary) -> str:
    """What became of a run in a few words: how many hosts are in each bad state, changes, findings, else ok."""
    states = [one.status for one in run.hosts]
    words = [f"[bold red]{_of(states.count(word), states)}{word}[/]" for word in _BAD if word in states]
    failed, changes = sum(one.failed for one in run.hosts), sum(one.changes for one in run.hosts)
    words += [f"[red]{count(failed, 'finding')}[/]"] if failed else []
    words += [count(changes, "change")] if changes else []
    words += ["changes pending"] if "pending" in states and not words else []
    words += ["interrupted"] if run.exit_code == 130 else []
    return ", ".join(words) or ("[green]ok[/]" if run.exit_code == 0 else f"exit {run.exit_code}")


def _of(number: int, states: Sequence[str]) -> str:
    return f"{number} of {len(states)} " if len(states) > 1 else ""


def run(console: Console, found: dict[str, Any]) -> None:
    """One run: when, what of, and for each host its steps, changes and findings; passes are only counted."""
    began, ended = (datetime.datetime.fromisoformat(found[key]) for key in ("started", "ended"))
    took = (ended - began).total_seconds()
    console.print(
        f"[bold]{escape(found['run'])}[/]  {found['command']}  {_when(began)}, {took:.1f} s, exit {found['exit_code']}"
    )
    of = [f"{word} {as_is(found[word])}" for word in ("playbook", "inventory") if found[word]]
    console.print(f"[dim]{', '.join(of)}[/]")
    for name, host in found["hosts"].items():
        _host(console, name, host)


def _host(console: Console, name: str, host: dict[str, Any]) -> None:
    colour = "bold red" if host["status"] in _BAD else "green"
    mark = f"  [bold magenta]SIMULATED[/] [dim]({as_is(host['simulated'])})[/]" if host["simulated"] else ""
    console.print(f"\n[bold]{as_is(name)}[/]  {as_is(host['address'])}  [{colour}]{host['status']}[/]{mark}")
    if host["error"]:
        console.print(f"  [bold red]error[/] {as_is(host['error']['where'])}: {as_is(host['error']['found'])}")
    for step in host["steps"]:
        if step["status"] in ("failed", "unknown"):
            console.print(f"  [bold red]{step['status']}[/]  {as_is(step['name'])}  [dim]{as_is(step['reason'])}[/]")
    for change in host["changes"]:
        sign = SIGN[change["action"]]
        left = "" if change["done"] else "  [yellow]not done[/]"
        console.print(f"  {sign} {as_is(change['subject'])}  {_arrow(change['before'], change['after'])}{left}")
    for finding in host["findings"]:
        if finding["verdict"] != "pass":
            wanted = f"  [dim]wanted {as_is(finding['wanted'])}[/]" if finding["wanted"] else ""
            console.print(
                f"  {VERDICT[finding['verdict']]}  {as_is(finding['subject'])}: {as_is(finding['seen'])}{wanted}"
            )
    passed = sum(finding["verdict"] == "pass" for finding in host["findings"])
    console.print(
        f"  [dim]{count(host['steps_planned'], 'step')}, {count(passed, 'check')} passed, {host['seconds']:.1f} s[/]"
    )


def diff(console: Console, host: str, since: datetime.datetime, found: Sequence[Changed]) -> None:
    """A line for each thing that became different, under the run that saw or made it."""
    if not found:
        console.print(f"[bold]{as_is(host)}[/]: nothing that the history keeps has changed since {_when(since)}")
        return
    above = ""
    for one in found:
        if one.run != above:
            console.print(f"[bold]{_when(one.at)}[/]  [dim]run {escape(one.run)}[/]")
            above = one.run
        by = "  [dim]made by rigwright[/]" if one.kind == "change" else ""
        console.print(f"  {as_is(one.subject)}  {_arrow(one.before, one.after)}{by}")


def _arrow(before: str, after: str) -> str:
    was, now = (as_is(" ".join(text.split())[:160]) for text in (before, after))
    return f"{was} [dim]->[/] {now}" if was and now else was or now


def _when(at: datetime.datetime) -> str:
    """A time by this machine's clock, to the minute."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=column not in ("hosts", "result"), overflow="fold")
    return table
