"""What is left of a run: its place in the history, its JSON document, and its page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rigwright.errors import RigwrightError, UsageError
from rigwright.report import document
from rigwright.report.output import Output


def can_be(option: str, file: str) -> None:
    """Raises UsageError where that file cannot be written: before a run, not after its twenty minutes."""
    folder = Path(file).parent
    if not file:
        return
    if file == "-" or Path(file).is_dir():
        raise UsageError(option, f"'{file}' is no file", "a file in a directory that is there", f"{option} report.html")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        said = "is not there" if not folder.exists() else "cannot be written to"
        raise UsageError(option, f"{file}: the directory {folder} {said}", "a file in a directory that is there")


def remember(made: dict[str, Any], output: Output) -> None:
    """The run stands in the history; where that cannot be, a line says why, and nothing else is different."""
    from rigwright.history import History

    try:
        with History.open() as history:
            history.record(made)
    except RigwrightError as error:
        output.text.unrecorded(error)


def write(made: dict[str, Any], json: str, html: str, output: Output) -> int:
    """The document stands in `json` (`-`: on stdout), its page in `html`; 1 when one cannot be, which a message says."""
    failed = 0
    try:
        if json:
            deliver(made, json)
    except UsageError as error:
        output.text.error(error)
        failed = 1
    if html:
        from rigwright.report.page import page

        try:
            put("--html", page([made]), html)
        except UsageError as error:
            output.text.error(error)
            failed = 1
    return failed


def deliver(made: dict[str, Any], target: str) -> None:
    """The document stands in a file, or on stdout for `-`. Raises UsageError when the file cannot be written."""
    if target == "-":
        print(document.dumps(made))
    else:
        put("--json", document.dumps(made) + "\n", target)


def put(option: str, text: str, file: str) -> None:
    """The text stands in the file, whole. Raises UsageError when it cannot be written."""
    try:
        document.write(text, file)
    except OSError as failed:
        found = f"{file} cannot be written ({failed.strerror})"
        raise UsageError(option, found, "a file in a directory that is there") from None
