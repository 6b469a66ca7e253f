"""`invoke accept`: the acceptance sheet of second-hand hardware at the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from rigwright.core.process.program_name import as_typed
from rigwright.engine.limits import LimitsResult
from rigwright.engine.machine import MachineResult, MeasuredGpus
from rigwright.engine.report import HostReport, NcclTestResult
from rigwright.facts.plain import plain
from rigwright.report.html import gpu_cards
from rigwright.report.labels import SIGNS, WEIGHTS, as_is
from rigwright.report.tables import with_columns, write, write_labels
from rigwright.report.wrapping import hanging

_STYLE = {"warn": "yellow", "fail": "bold red"}
NOT_MEASURED = "no speed under full load is known: invoke stress --host {host} measures it"
_COLUMNS = ("Bus id", "UUID", "Serial")
"""Rows of a card that are columns of the table; every other row is shown once for all cards that have the same."""


def show(console: Console, reports: list[HostReport]) -> None:
    """Writes for each host a table of its cards, a line for each property, and the flaws."""
    for report in reports:
        machine = report.last(MachineResult).machine
        console.print()
        if machine.get("gpus"):
            table = with_columns("position", "bus id", "serial", "UUID")
            for gpu in machine["gpus"]:
                cells = (gpu["position"], gpu["bus_id"].removeprefix("0000:"), gpu["serial"], gpu["uuid"])
                table.add_row(*(as_is(cell or "-") for cell in cells))
            write(console, table)
            write_labels(console, _properties(machine["gpus"], report))
            if not report.last(MeasuredGpus).gpus:
                hanging(console, as_typed(as_is(NOT_MEASURED.format(host=report.host.name))), 2)
        for name, why in machine.get("unknown", {}).items():
            hanging(console, f"[yellow]?[/] {as_is(name)}: {as_is(why)}")
        if report.error is not None:
            continue
        if not report.problems:
            hanging(console, f"[bold]{as_is(report.host.name)}[/]: [bold green]no flaw found[/]")
        for problem in report.problems:
            style = _STYLE.get(problem.verdict, "yellow")
            hanging(console, f"[{style}]{WEIGHTS[problem.verdict]}[/]  {as_is(problem.title)}")


def _properties(gpus: list[dict[str, Any]], report: HostReport) -> list[tuple[str, str]]:
    """A label and a text for each property; those that not all cards that answer share name the cards that have it."""
    places: dict[gpu_cards.Row, list[str]] = {}
    p2p: dict[str, Any] = report.last(NcclTestResult).as_json(report) or {}
    measured = plain(report.last(MeasuredGpus).gpus)
    for gpu in gpus:
        limits = next((row for row in report.last(LimitsResult).rows if row["bus_id"] == gpu["bus_id"]), {})
        groups = gpu_cards.groups(gpu, report.last(MachineResult).machine, p2p, limits, measured)
        card = gpu_cards.Row("Card", gpu["name"] or gpu["expected"] or "unknown")
        for row in (card, *(row for group in groups for row in group.rows if row.label not in _COLUMNS)):
            places.setdefault(row, []).append(gpu["position"] or gpu["bus_id"])
    order = list(dict.fromkeys(row.label for row in places))
    answering = {gpu["position"] or gpu["bus_id"] for gpu in gpus if gpu["answers"]}
    return [
        (row.label, _text(row) + ("" if set(names) >= answering > set() else f" [dim]({as_is(', '.join(names))})[/]"))
        for row, names in sorted(places.items(), key=lambda item: order.index(item[0].label))
    ]


def _text(row: gpu_cards.Row) -> str:
    return f"[{_STYLE[row.kind]}]{SIGNS[row.kind]} {as_is(row.text)}[/]" if row.kind else as_is(row.text)
