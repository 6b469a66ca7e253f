"""Writes the results of a run: its record in the history, its JSON document, its page and its metrics."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct

from rigwright.core import features
from rigwright.core.errors import RigwrightError, UsageError, unexpected
from rigwright.core.files import atomic
from rigwright.core.process import streams
from rigwright.report import json_document
from rigwright.report.lazy_terminal import Output


class Files(Struct, frozen=True):
    """The files to write, "" for none. `reload`: the seconds after which a browser loads the page again, 0: never."""

    json: str = ""
    html: str = ""
    prometheus: str = ""
    reload: int = 0

    @classmethod
    def of(cls, options: object) -> Files:
        """The files that options of these names give."""
        return cls(**{name: getattr(options, name) for name in cls.__struct_fields__ if hasattr(options, name)})


def require_writable(files: Files) -> None:
    """Checks before a run that every file can be written. Raises UsageError."""
    if files.json != "-":
        _require_writable("--json", files.json, "run.json")
    _require_writable("--html", files.html, "report.html")
    _require_writable("--prometheus", files.prometheus, "fleet.prom", ".prom")


def _require_writable(option: str, file: str, example: str, ending: str = "") -> None:
    """Raises UsageError for a file that cannot be written, or that has another ending."""
    folder = os.path.dirname(os.path.realpath(file))
    if not file:
        return
    if file == "-" or os.path.isdir(file):
        raise UsageError(option, f"'{file}' is no file", "a file in an existing directory", f"{option} {example}")
    if _is_stream(file):
        return
    if ending and not file.endswith(ending):
        expected = f"a file that ends in {ending}; others are ignored"
        fix = f"{option} {Path(file).with_suffix(ending)}"
        raise UsageError(option, f"'{file}' does not end in {ending}", expected, fix)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        problem = "is not writable" if os.path.exists(folder) else "does not exist"
        fix = f"mkdir -p {folder}, or another directory" if problem == "does not exist" else f"{option} {example}"
        raise UsageError(option, f"{file}: the directory {folder} {problem}", "a file in an existing directory", fix)
    try:
        os.close(atomic.open_folder(Path(file).absolute())[0])
    except OSError as error:
        raise _not_writable(option, file, error) from None


def _not_writable(option: str, file: str, error: OSError) -> UsageError:
    return UsageError(
        option, f"{file} cannot be written ({error.strerror})", *atomic.remedy(error, Path(file).absolute())
    )


def _is_stream(file: str) -> bool:
    """Whether it is a device or a pipe, which is written to and never replaced: /dev/null, /dev/stderr, >(jq)."""
    return os.path.exists(file) and not os.path.isfile(file)


def record(document: dict[str, Any], output: Output) -> None:
    """Records the run in the history. A failure is a warning and does not affect the result."""
    from rigwright.history import History

    try:
        with History.open() as history:
            history.record(document)
    except Exception as error:
        problem = error if isinstance(error, RigwrightError) else unexpected("history", error)
        output.text.warn(f"the history has not recorded this run: {problem}")


def write(document: dict[str, Any], files: Files, output: Output) -> int:
    """Writes the document (`-`: to stdout), its page and its metrics. Returns 1, after a message, if one fails."""
    failed = 0
    is_fleet_report = document["command"] == "fleet.report"
    # The last whole report is better than half a report or one without hosts: keep it.
    keep_last = not document["hosts"] or (is_fleet_report and document["exit_code"] == 130)
    refused = (document["error"] or {}).get("where") == "--json"  # the message about it is printed already
    for file, write_file in (
        ("" if refused else files.json, write_json),
        ("" if keep_last else files.html, partial(_write_page, files.reload)),
        ("" if keep_last else files.prometheus, _write_metrics),
    ):
        try:
            if file:
                write_file(document, file)
        except Exception as error:
            output.text.error(error if isinstance(error, UsageError) else unexpected(file, error))
            failed = 1
    written = [file for file in (files.html, files.prometheus, files.json) if file not in ("", "-")]
    if is_fleet_report and not failed and not keep_last and written:
        output.text.plain(f"written: {', '.join(written)}")
    return failed


def _write_page(reload: int, document: dict[str, Any], file: str) -> None:
    if own := features.part(document["command"].replace(".", "_"), "page"):
        text = own.page(document, 0 if document["error"] else reload)
    else:
        from rigwright.report.html import host_page

        text = host_page.page([document])
    _write("--html", [text], file)


def _write_metrics(document: dict[str, Any], file: str) -> None:
    from rigwright.report import prometheus

    _write("--prometheus", [prometheus.text(document)], file)


def write_json(document: dict[str, Any], target: str) -> None:
    """Writes the document to a file, or to stdout for `-`. Raises UsageError when the file cannot be written."""
    document = json_document.redacted(document)
    if target == "-":
        streams.write_document(json_document.dumps(document))
    else:
        _write("--json", chain(json_document.lines(document), "\n"), target)


def _write(option: str, text: Iterable[str], file: str) -> None:
    """Writes the parts of a text to the file, whole or not at all, or to a device or a pipe. Raises UsageError."""
    try:
        if _is_stream(file):
            with Path(file).open("w", encoding="utf-8") as stream:
                stream.writelines(text)
        else:
            atomic.replace(Path(file), (part.encode("utf-8") for part in text))
    except OSError as error:
        raise _not_writable(option, file, error) from None
