"""The table of limits as text: every GPU with what is in force, what was wanted where that differs, and who set what."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rigwright.positions import SHORT_UUID

Row = dict[str, Any]

_CLOCKS = ("application_clocks", "locked_graphics", "locked_memory")
_COLUMNS = {
    "persistence": "persist",
    "power": "power W",
    "application_clocks": "clocks MHz",
    "locked_graphics": "locked MHz",
    "locked_memory": "locked mem",
}


def _told(limit: dict[str, Any]) -> bool:
    return bool(limit["wanted"] or limit["in_force"])


def _by(limit: dict[str, Any]) -> str:
    """Who set a limit, where that is not rigwright."""
    return str(limit["set_by"]) if limit["set_by"] == "somebody else" or (limit["drift"] and limit["set_by"]) else ""


def _cell(limit: dict[str, Any]) -> str:
    now, wanted = (re.sub(" (W|MHz)$", "", limit[key]) or "N/A" for key in ("in_force", "wanted"))
    if limit["drift"]:
        return f"[bold red]{now}[/] [dim]not[/] {wanted}"
    return f"[green]{now}[/]" if limit["wanted"] else now


def show(console: Console, rows: Sequence[Row]) -> None:
    """Writes the table of limits: every GPU with what is in force, and what was wanted where that differs; then who set what."""
    used = ["persistence", "power", *(name for name in _CLOCKS if any(_told(row[name]) for row in rows))]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("position", "bus id", "UUID", "GPU", *(_COLUMNS[name] for name in used)):
        table.add_column(column, no_wrap=column != "GPU")
    for row in rows:
        which = (row["position"] or "-", row["bus_id"].removeprefix("0000:"), row["uuid"][:SHORT_UUID] or "-")
        name = row["name"] and re.sub("^(NVIDIA|Tesla) (GeForce )?", "", row["name"])
        cells = [_cell(row[name]) for name in used] if not row["lost"] else [f"[bold red]{escape(row['lost'])}[/]"]
        table.add_row(*map(escape, which), escape(name), *cells)
    console.print(table)
    for name in ("power", "application_clocks"):
        _grouped(console, rows, name, lambda limit: limit["supported"], name.replace("_", " "))
    for name in used:
        _grouped(console, rows, name, _by, f"{_COLUMNS[name]} set by")
    for name in ("locked_graphics", "locked_memory"):
        if name in used:
            console.print(f"[dim]{_COLUMNS[name]}: set, not readable; of this boot's own record[/]")


def _grouped(console: Console, rows: Sequence[Row], name: str, said: Callable[[Row], str], title: str) -> None:
    """One dim line for each different thing that is said of a limit, with the GPUs of which it is said."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(said(row[name]), []).append(row["position"] or row["bus_id"])
    for text, places in groups.items():
        if text:
            only = "" if len(groups) == 1 else f" ({', '.join(places)})"
            console.print(f"[dim]{title}: {text}{only}[/]")
