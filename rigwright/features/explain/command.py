"""`invoke explain`: what the catalogue knows of a name or a text."""

from __future__ import annotations

import datetime
import io
import sys
from pathlib import Path

from rich.console import Console

from rigwright import catalogue
from rigwright.cli.answer import answered
from rigwright.cli.given_inventory import inventory_path
from rigwright.core.errors import UsageError
from rigwright.features.explain.options import ExplainOptions
from rigwright.features.explain.table import show
from rigwright.features.explain.topics import Explanation, explain as find


@answered
def explain(options: ExplainOptions, console: Console) -> None:
    """Prints the explanation of a name or a text, or with `-` what is wrong in the text on stdin."""
    today = datetime.date.today()
    age = catalogue.stale(today)
    try:
        found = _of_stdin(today) if options.name == "-" else find(options.name, today, _own_rigs(options.inventory))
    except UsageError as error:
        error.fix = "; ".join(part for part in (error.fix, age) if part)
        raise
    show(console, found)
    if age:
        console.print(f"\n{age}", highlight=False, markup=False, soft_wrap=True)


def _of_stdin(today: datetime.date) -> tuple[Explanation, ...]:
    from rigwright.features.explain import pasted_table as table, pasted_text

    stdin = sys.stdin.buffer if sys.stdin else io.BytesIO()
    return table.explanations(pasted_text.read(stdin, today))


def _own_rigs(given: str) -> Path | None:
    """The folder of the user's own rigs beside the inventory; None without one. Reads nothing of the inventory
    itself."""
    inventory = inventory_path(given)
    folder = (inventory if inventory.is_dir() else inventory.parent) / "rigs"
    return folder if folder.is_dir() else None
