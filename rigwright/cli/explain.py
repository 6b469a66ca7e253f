"""`invoke explain`: what the catalogue knows of a name or a text."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

from rich.console import Console

from rigwright import catalogue
from rigwright.catalogue.explain import explain as find
from rigwright.cli.answer import answered
from rigwright.cli.options import ExplainOptions
from rigwright.cli.runner import inventory_path
from rigwright.core.errors import UsageError
from rigwright.report.tables.explain import show

MAX_STDIN_BYTES = 4 << 20


@answered
def explain(options: ExplainOptions, console: Console) -> None:
    """Prints the explanation of a name, a text, or the log on stdin (`-`)."""
    text = _stdin() if options.name == "-" else options.name
    if options.name == "-" and not text.strip():
        raise UsageError("explain", "stdin is empty", "the text of a log", "sudo dmesg | invoke explain -")
    today = datetime.date.today()
    age = catalogue.stale(today)
    try:
        show(console, find(text, today, _own_rigs(options.inventory)))
    except UsageError as error:
        error.fix = "; ".join(part for part in (error.fix, age) if part)
        raise
    if age:
        console.print(f"\n{age}", highlight=False, markup=False, soft_wrap=True)


def _own_rigs(given: str) -> Path | None:
    """The folder of the user's own rigs beside the inventory; None without one. Reads nothing of the inventory itself."""
    inventory = inventory_path(given)
    folder = (inventory if inventory.is_dir() else inventory.parent) / "rigs"
    return folder if folder.is_dir() else None


def _stdin() -> str:
    """The last 4 MiB of stdin; bytes that are not UTF-8 become U+FFFD."""
    if sys.stdin is None:
        return ""
    kept = b""
    while read := sys.stdin.buffer.read(MAX_STDIN_BYTES):
        kept = (kept + read)[-MAX_STDIN_BYTES:]
    return kept.decode("utf-8", "replace")
