"""What is left of a run: its place in the history, its JSON document, and its page."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rigwright import editing, figures
from rigwright.errors import RigwrightError, UsageError
from rigwright.report import document
from rigwright.report.output import Output


@dataclass(frozen=True)
class Files:
    """What is to be written where; "" for nothing. `reload`: after so many seconds a browser reads the page again, "" for never."""

    json: str = ""
    html: str = ""
    prometheus: str = ""
    reload: str = ""


def insist(files: Files) -> None:
    """Raises UsageError where one of them cannot be written: before a run, not after its twenty minutes."""
    if files.json != "-":
        _can_be("--json", files.json, "run.json")
    _can_be("--html", files.html, "report.html")
    _can_be("--prometheus", files.prometheus, "fleet.prom", ".prom")
    seconds("--reload", files.reload)


def _can_be(option: str, file: str, example: str, ending: str = "") -> None:
    """Raises UsageError where that file cannot be written, or has another ending."""
    folder = os.path.dirname(os.path.realpath(file))
    if not file:
        return
    if file == "-" or os.path.isdir(file):
        raise UsageError(option, f"'{file}' is no file", "a file in a directory that is there", f"{option} {example}")
    if _passes_on(file):
        return
    if ending and not file.endswith(ending):
        wanted = f"a file that ends in {ending}, or its reader passes it over"
        todo = f"{option} {Path(file).with_suffix(ending)}"
        raise UsageError(option, f"'{file}' does not end in {ending}", wanted, todo)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        said = "cannot be written to" if os.path.exists(folder) else "is not there"
        raise UsageError(option, f"{file}: the directory {folder} {said}", "a file in a directory that is there")


def _passes_on(file: str) -> bool:
    """Whether it is a device or a pipe, which is written to and never replaced: /dev/null, /dev/stderr, >(jq)."""
    return os.path.exists(file) and not os.path.isfile(file)


def seconds(option: str, word: str) -> int:
    """So many; 0 for "". Raises UsageError for what is no time that a person could read a page in."""
    return figures.whole(option, word, 10, "seconds", most=86400, todo=f"{option} 300") if word else 0


def remember(made: dict[str, Any], output: Output) -> None:
    """The run stands in the history; where that cannot be, a line says why, and nothing else is different."""
    from rigwright.history import History

    try:
        with History.open() as history:
            history.record(made)
    except RigwrightError as error:
        output.text.unrecorded(error)


def write(made: dict[str, Any], files: Files, output: Output) -> int:
    """The document stands in its file (`-`: on stdout), its page and its metrics in theirs; 1 when one cannot be, which a message says."""
    failed = 0
    of_a_fleet = made["command"] == "fleet.report"
    # Half a report helps less than the last whole one, and a page of no host helps nobody.
    kept = not made["hosts"] or (of_a_fleet and made["exit_code"] == 130)
    refused = (made["error"] or {}).get("where") == "--json"  # which was said
    for file, put_there in (
        ("" if refused else files.json, deliver),
        ("" if kept else files.html, partial(_page, files.reload)),
        ("" if kept else files.prometheus, _metrics),
    ):
        try:
            if file:
                put_there(made, file)
        except UsageError as error:
            output.text.error(error)
            failed = 1
    if of_a_fleet and not failed and not kept:
        written = [file for file in (files.html, files.prometheus, files.json) if file not in ("", "-")]
        if written:
            output.text.plain(f"written: {', '.join(written)}")
    return failed


def _page(reload: str, made: dict[str, Any], file: str) -> None:
    if made["command"] == "fleet.report":
        from rigwright.report import overview

        put("--html", overview.page(made, seconds("--reload", reload) if not made["error"] else 0), file)
    else:
        from rigwright.report.page import page

        put("--html", page([made]), file)


def _metrics(made: dict[str, Any], file: str) -> None:
    from rigwright.report import prometheus

    put("--prometheus", prometheus.text(made), file)


def deliver(made: dict[str, Any], target: str) -> None:
    """The document stands in a file, or on stdout for `-`. Raises UsageError when the file cannot be written."""
    if target == "-":
        print(document.dumps(made))
    else:
        put("--json", document.dumps(made) + "\n", target)


def put(option: str, text: str, file: str) -> None:
    """The text stands in the file, whole, or went to a device or a pipe. Raises UsageError when it cannot be written."""
    try:
        if _passes_on(file):
            Path(file).write_text(text, encoding="utf-8")
        else:
            editing.replace(Path(file), text.encode("utf-8"))
    except OSError as failed:
        found = f"{file} cannot be written ({failed.strerror})"
        raise UsageError(option, found, "a file in a directory that is there") from None
