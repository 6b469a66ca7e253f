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
from rigwright.features.explain import answer
from rigwright.features.explain.options import ExplainOptions
from rigwright.features.explain.overview import overview
from rigwright.features.explain.table import show


@answered
def explain(options: ExplainOptions, console: Console) -> None:
    """Prints the explanation of a name or a text, with `-` of the text on stdin, or without a word the known names."""
    today = datetime.date.today()
    age = catalogue.stale(today)
    try:
        inventory = inventory_path(options.inventory)
        folder = (inventory if inventory.is_dir() else inventory.parent) / "rigs"
        rigs = folder if folder.is_dir() else None
        if not options.name:
            explanations = overview(rigs)
        elif options.name == "-":
            stdin = sys.stdin.buffer if sys.stdin else io.BytesIO()
            explanations = answer.explain_stream(stdin, today, rigs)
        else:
            explanations = answer.explain(options.name, today, rigs)
    except UsageError as error:
        error.fix = "; ".join(part for part in (error.fix, age) if part)
        raise
    show(console, explanations)
    if age:
        console.print(f"\n{age}", highlight=False, markup=False, soft_wrap=True)
