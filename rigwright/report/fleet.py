"""The fleet as text: a line for each host, and under it what differs."""

from __future__ import annotations

import datetime
import shlex
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from rigwright import figures
from rigwright.checks import Finding
from rigwright.choices import counted_ids
from rigwright.hostreport import BAD, HostReport
from rigwright.patterns import folded
from rigwright.report.words import as_is

SHOWN = 8
"""So many findings of a kind and host are shown; plan, verify and --json have all."""

_KINDS = {
    "plan": ("playbook", "from its playbook", "invoke plan --host {host}"),
    "fleet.past": ("past", "from its past", "invoke history.diff {host}"),
    "fleet.gpus": ("GPUs", "of its GPUs", "invoke fleet.check --host {host} --json -"),
    "fleet.peers": ("peers", "from its peers", "invoke fleet.check --host {host} --json -"),
    "checks": ("checks", "in its checks", "invoke verify --host {host}"),
}


_OF_THE_PAST = ("fleet.past", "fleet.gpus")


def check(console: Console, reports: Sequence[HostReport]) -> None:
    """Every host with what it is, or how much differs and what; a line that counts the hosts."""
    wide = max((len(report.host.name) for report in reports), default=0)
    for report in reports:
        _host(console, report, wide)
    states = Counter(_state(report) for report in reports)
    words = [f"[{colour}]{states[word]} {text}[/]" for word, (_, colour, text) in _STATES.items() if states[word]]
    console.print(f"\n[bold]{figures.count(len(reports), 'host')}[/]: {', '.join(words)}")
    other = [one.host.name for one in reports if any(found.check in _OF_THE_PAST for found in one.findings)]
    if other:
        hosts = as_is(shlex.quote(folded(other).replace(", ", ",")))
        console.print(f"what is right as it is becomes the past by: invoke verify --host {hosts}", soft_wrap=True)


_STATES = {
    "ok": ("ok   ", "green", "as usual"),
    "drift": ("DRIFT", "bold red", "drifting"),
    "unreachable": ("away ", "bold yellow", "unreachable"),
    "error": ("error", "bold red", "with an error"),
}


def _state(report: HostReport) -> str:
    if report.error is not None:
        return "unreachable" if report.status == "unreachable" else "error"
    return "drift" if report.status == "failed" else "ok"


def _host(console: Console, report: HostReport, wide: int) -> None:
    mark, colour, _ = _STATES[_state(report)]
    told = [one for one in report.findings if one.verdict in BAD]
    count = Counter(_kind(one) for one in told)
    if report.error is not None:
        said = report.error.found
    elif count:
        said = ", ".join(f"{count[kind]} {_KINDS[kind][1]}" for kind in _KINDS if count[kind])
    else:
        said = _summary(report)
    line = f"[{colour}]{mark}[/]  [bold]{as_is(report.host.name):{wide}}[/]  {as_is(said)}"
    console.print(line + ("  [magenta]SIMULATED[/]" if report.simulated else ""), no_wrap=True, overflow="ellipsis")
    for kind, (title, _, todo) in _KINDS.items():
        found = [one for one in told if _kind(one) == kind]
        for one in found[:SHOWN]:
            console.print(_finding(title, one), soft_wrap=True)
        if len(found) > SHOWN:
            more = todo.format(host=report.host.name)
            console.print(f"       [dim]{title:8}  and {len(found) - SHOWN} more: {as_is(more)}[/]", soft_wrap=True)


def _kind(one: Finding) -> str:
    return one.check if one.check in _KINDS else "checks"


def over_time(console: Console, reports: Sequence[HostReport]) -> None:
    """A line of what became different since the report before, and one for each thing that ended or soon will."""
    known = [report.fleet for report in reports if report.fleet and report.fleet["since"]]
    count = {key: sum(len(one[key]) for one in known) for key in ("became", "new", "gone")}
    if known:
        oldest = min(datetime.datetime.fromisoformat(one["since"]) for one in known).astimezone()
        words = ", ".join(
            (
                figures.count(count["became"], "change"),
                figures.count(count["new"], "new finding"),
                f"{count['gone']} gone",
            )
        )
        console.print(f"since the report of {oldest:%Y-%m-%d %H:%M}: {words}", soft_wrap=True)
    hosts: dict[tuple[str, str, str, str], list[str]] = {}
    for report in reports:
        for end in (report.fleet or {}).get("ends", ()):
            if end["state"] in ("ended", "soon"):
                key = (end["date"], end["name"], end["state"], end["words"])
                hosts.setdefault(key, []).append(report.host.name)
    for (date, name, state, words), names in sorted(hosts.items()):
        mark = "[yellow]ended[/] on" if state == "ended" else "[yellow]ends[/] on"
        on = f"{len(names)} hosts" if len(names) > 1 else names[0]
        console.print(f"{as_is(name)} {mark} {date} ({as_is(on)}): {as_is(words)}", soft_wrap=True)


def _finding(title: str, one: Finding) -> Text:
    wanted = f", not {_short(one.wanted)}" if one.wanted and one.check in ("plan", "fleet.peers", "fleet.past") else ""
    cause = f"  [dim]({as_is(one.cause)})[/]" if one.cause else ""
    return Text.from_markup(f"       [dim]{title:8}[/]  {as_is(one.subject)}: {_short(one.seen)}{wanted}{cause}")


def _summary(report: HostReport) -> str:
    """What the machine is: GPUs, driver, kernel, as far as it says."""
    gpus = counted_ids(one.device_id for one in report.kept.get("pci.gpus", ()))
    words = [gpus] if gpus else []
    words += [f"driver {driver}"] if (driver := report.kept.get("driver.loaded_version")) else []
    words += [f"kernel {kernel}"] if (kernel := report.kept.get("os.running_kernel")) else []
    return ", ".join(words)


def _short(text: str) -> str:
    return as_is(" ".join(text.split())[:100])
