"""The table of limits: for each GPU the value in force, the expected one where that differs, and who set it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from rigwright.core.gpu_labels import SHORT_UUID
from rigwright.report.labels import as_is
from rigwright.report.tables import with_columns, write
from rigwright.report.wrapping import hanging

Row = dict[str, Any]

_CLOCKS = ("application_clocks", "locked_graphics", "locked_memory")
_COLUMNS = {
    "persistence": "persist",
    "power": "power W",
    "application_clocks": "clocks MHz",
    "locked_graphics": "locked MHz",
    "locked_memory": "locked mem",
}


def _set_by(limit: dict[str, Any]) -> str:
    """Who set a limit, "" for rigwright."""
    return str(limit["set_by"]) if limit["set_by"] == "somebody else" or limit["drift"] else ""


def _cell(limit: dict[str, Any]) -> str:
    now, expected = (re.sub(" (W|MHz)$", "", limit[key]) or "N/A" for key in ("in_force", "expected"))
    if limit["drift"]:
        return f"[bold red]{now}[/] [dim]not[/] {expected}"
    return f"[green]{now}[/]" if limit["expected"] else now


def show(console: Console, rows: Sequence[Row]) -> None:
    """Writes the table, the supported values and who set each limit. `rows`: the key `gpus` of the document."""
    clocks = [name for name in _CLOCKS if any(row[name]["expected"] or row[name]["in_force"] for row in rows)]
    used = ["persistence", "power", *clocks]
    table = with_columns("position", "bus id", "UUID", "GPU", *(_COLUMNS[name] for name in used), wrap=("GPU",))
    for row in rows:
        place = (row["position"] or "-", row["bus_id"].removeprefix("0000:"), row["uuid"][:SHORT_UUID] or "-")
        name = row["name"] and re.sub("^(NVIDIA|Tesla) (GeForce )?", "", row["name"])
        cells = [_cell(row[name]) for name in used] if not row["lost"] else []
        table.add_row(*map(as_is, place), f"[bold red]{as_is(row['lost'])}[/]" if row["lost"] else as_is(name), *cells)
    write(console, table)
    for name in ("power", "application_clocks"):
        _grouped(console, rows, name, lambda limit: limit["supported"], name.replace("_", " "))
    for name in used:
        _grouped(console, rows, name, _set_by, f"{_COLUMNS[name]} set by")
    for name in ("locked_graphics", "locked_memory"):
        if name in used:
            hanging(console, f"[dim]{_COLUMNS[name]}: cannot be read back; from the record of this boot[/]")


def _grouped(console: Console, rows: Sequence[Row], name: str, describe: Callable[[Row], str], title: str) -> None:
    """Writes one dim line for each different description of a limit, with the GPUs that it is about."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(describe(row[name]), []).append(row["position"] or row["bus_id"])
    for text, places in groups.items():
        if text:
            only = "" if len(groups) == 1 else f" ({', '.join(places)})"
            hanging(console, f"[dim]{title}: {as_is(text)}{as_is(only)}[/]")
