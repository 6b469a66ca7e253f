"""`invoke explain`: what the catalogue knows of a name or a text."""

from __future__ import annotations

import datetime
import sys

from rich.console import Console

from rigwright.catalogue.explain import explain as find
from rigwright.cli.answer import answered
from rigwright.cli.options import ExplainOptions
from rigwright.cli.runner import given_inventory
from rigwright.core.errors import UsageError
from rigwright.report.tables.explain import show

MAX_STDIN_BYTES = 4 << 20


@answered
def explain(options: ExplainOptions, console: Console) -> None:
    """Prints the explanation of a name, a text, or the log on stdin (`-`)."""
    text = _stdin() if options.name == "-" else options.name
    if options.name == "-" and not text.strip():
        raise UsageError("explain", "stdin is empty", "the text of a log", "sudo dmesg | invoke explain -")
    inventory = given_inventory(options.inventory)
    show(console, find(text, datetime.date.today(), inventory.rigs if inventory else None))


def _stdin() -> str:
    """The last 4 MiB of stdin; bytes that are not UTF-8 become U+FFFD."""
    if sys.stdin is None:
        return ""
    kept = b""
    while read := sys.stdin.buffer.read(MAX_STDIN_BYTES):
        kept = (kept + read)[-MAX_STDIN_BYTES:]
    return kept.decode("utf-8", "replace")
