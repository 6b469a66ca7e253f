"""What the history shows of tries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from rigwright.core.typed_json import typed
from rigwright.features.try_ import table
from rigwright.features.try_.attempt import Attempt
from rigwright.report.labels import as_is
from rigwright.report.wrapping import hanging


def show(console: Console, host: Mapping[str, Any]) -> None:
    """Writes what a recorded run of `try` measured and decided, if it is one; one line for a record of another form."""
    if not host.get("try"):
        return
    try:
        tried = typed(host["try"], Attempt)
    except ValueError as error:
        hanging(console, f"  [yellow]the record of the try cannot be read[/]: {as_is(str(error)[:100])}")
        return
    table.show(console, tried)
    if tried.decision:
        hanging(console, f"[bold]{as_is(tried.change)}[/]: {tried.decision}, {as_is(tried.why)}", 4)
