"""What is left of a run: its place in the history, and its JSON document."""

from __future__ import annotations

from typing import Any

from rigwright.errors import RigwrightError, UsageError
from rigwright.report import document
from rigwright.report.output import Output


def remember(made: dict[str, Any], output: Output) -> None:
    """The run stands in the history; where that cannot be, a line says why, and nothing else is different."""
    from rigwright.history import History

    try:
        with History.open() as history:
            history.record(made)
    except RigwrightError as error:
        output.text.unrecorded(error)


def write(made: dict[str, Any], target: str, output: Output) -> int:
    """The document stands in a file, or on stdout for `-`; 1 when it cannot be written, which a message says."""
    try:
        deliver(made, target)
    except UsageError as error:
        output.text.error(error)
        return 1
    return 0


def deliver(made: dict[str, Any], target: str) -> None:
    """The document stands in a file, or on stdout for `-`. Raises UsageError when the file cannot be written."""
    if target == "-":
        print(document.dumps(made))
        return
    try:
        document.write(made, target)
    except OSError as failed:
        found = f"{target} cannot be written ({failed.strerror})"
        raise UsageError("--json", found, "a file in a directory that is there") from None
