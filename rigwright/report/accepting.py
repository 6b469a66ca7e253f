"""The acceptance sheet of second-hand hardware, at the terminal: every card with what a seller should tell of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rigwright.fleet import HostReport
from rigwright.report import cards, document

_STYLE = {"": "", "warn": "yellow", "fail": "bold red"}
_SIGN = {"": "", "warn": "! ", "fail": "✗ "}
_OWN = ("Bus id", "UUID", "Serial")
"""What the table has; every other row is said once for all cards of which it is so."""


def show(console: Console, reports: list[HostReport]) -> None:
    """For every host a table of its cards, then a line for each thing that is said of them, and one that counts."""
    for report in reports:
        machine = report.machine or {}
        console.print()
        if machine.get("gpus"):
            console.print(_table(machine["gpus"]), highlight=False)
            console.print(_said(machine["gpus"], report), highlight=False)
        for name, why in machine.get("unknown", {}).items():
            console.print(f"[yellow]?[/] {escape(name)}: {escape(why)}", highlight=False)
        if report.error is None:
            console.print(f"[bold]{escape(report.host.name)}[/]: {_closing(report)}", highlight=False)


def _table(gpus: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("position", "bus id", "serial", "UUID"):
        table.add_column(column, no_wrap=True)
    for gpu in gpus:
        cells = (gpu["position"], gpu["bus_id"].removeprefix("0000:"), gpu["serial"], gpu["uuid"])
        table.add_row(*(escape(cell or "-") for cell in cells))
    return table


def _said(gpus: list[dict[str, Any]], report: HostReport) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    places: dict[cards.Row, list[str]] = {}
    for gpu in gpus:
        for row in _rows(gpu, report):
            places.setdefault(row, []).append(gpu["position"] or gpu["bus_id"])
    order = list(dict.fromkeys(row.label for row in places))
    above = ""
    for row in sorted(places, key=lambda row: order.index(row.label)):
        style, text = _STYLE[row.kind], escape(_SIGN[row.kind] + row.text)
        only = "" if len(places[row]) == len(gpus) else f" [dim]({escape(', '.join(places[row]))})[/]"
        table.add_row(row.label if row.label != above else "", (f"[{style}]{text}[/]" if style else text) + only)
        above = row.label
    return table


def _rows(gpu: dict[str, Any], report: HostReport) -> Iterator[cards.Row]:
    limits = next((row for row in report.rows if row["bus_id"] == gpu["bus_id"]), {})
    p2p: dict[str, Any] = document.p2p(report) or {}
    yield cards.Row("Card", gpu["name"] or gpu["expected"] or "unknown")
    for group in cards.groups(gpu, report.machine or {}, p2p, limits):
        yield from (row for row in group.rows if row.label not in _OWN)


def _closing(report: HostReport) -> str:
    counts = Counter(str(finding.verdict) for finding in report.findings)
    words = {"fail": "failed", "unknown": "unknown", "warn": "to look at"}
    said = ", ".join(f"{counts[verdict]} {word}" for verdict, word in words.items() if counts[verdict])
    return f"[bold red]{said}[/]" if said else "[bold green]no flaw found[/]"
