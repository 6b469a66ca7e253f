"""`invoke explain`: explains a name or a text from the catalogue."""

from __future__ import annotations

import datetime
import io
import sys

from rich.console import Console

from rigwright import catalogue
from rigwright.cli.answer import answered
from rigwright.cli.given_inventory import inventory_path
from rigwright.core.errors import UsageError
from rigwright.features.explain.options import ExplainOptions
from rigwright.features.explain.table import show
from rigwright.features.explain.topics import explain as find


@answered
def explain(options: ExplainOptions, console: Console) -> None:
    """Prints the explanation of a name or a text, or with `-` the problems in the text on stdin."""
    today = datetime.date.today()
    age = catalogue.stale(today)
    try:
        if options.name == "-":
            from rigwright.features.explain import pasted_table, pasted_text

            stdin = sys.stdin.buffer if sys.stdin else io.BytesIO()
            explanations = pasted_table.explanations(pasted_text.read(stdin, today))
        else:
            inventory = inventory_path(options.inventory)
            rigs = (inventory if inventory.is_dir() else inventory.parent) / "rigs"
            explanations = find(options.name, today, rigs if rigs.is_dir() else None)
    except UsageError as error:
        error.fix = "; ".join(part for part in (error.fix, age) if part)
        raise
    show(console, explanations)
    if age:
        console.print(f"\n{age}", highlight=False, markup=False, soft_wrap=True)
