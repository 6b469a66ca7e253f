"""A run's document and its page in files: whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rigwright.errors import RigwrightError, UsageError
from rigwright.fleet import HostReport
from rigwright.report import document


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


def write(
    command: str, run_id: str, code: int, error: RigwrightError | None, reports: Sequence[HostReport],
    json: str, html: str,
) -> Iterator[UsageError]:  # fmt: skip
    """The document stands in `json` (`-`: on stdout), its page in `html`; yields what is to be said of one that cannot be."""
    if not json and not html:
        return
    made = document.document(command, run_id, code, error, reports)
    if json == "-":
        print(document.dumps(made))
    elif json:
        yield from _put("--json", document.dumps(made) + "\n", json)
    if html:
        from rigwright.report.page import page

        yield from _put("--html", page([made]), html)


def _put(option: str, text: str, file: str) -> Iterator[UsageError]:
    try:
        document.write(text, file)
    except OSError as failed:
        found = f"{file} cannot be written ({failed.strerror})"
        yield UsageError(option, found, "a file in a directory that is there")
