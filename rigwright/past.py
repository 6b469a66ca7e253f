"""`invoke history.list`, `history.show`, `history.diff` and `history.set-aside`: what runs left. No host is asked."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape

from rigwright import figures, history
from rigwright.errors import RigwrightError, UsageError
from rigwright.history import History
from rigwright.knowledge import guarded

Answer = tuple[dict[str, Any], Callable[[Console], None]]
"""What a question to the history is answered with: keys of the JSON document, and what writes the text."""


def list_runs(host: str, limit: str, json: str) -> int:
    """Prints the newest runs; returns the exit code."""

    def act(past: History) -> Answer:
        from rigwright.report import history as report

        most = figures.whole("--limit", limit, 0, "runs", wanted="a whole number; 0 for all of them")
        runs = past.runs(most or -1, host)
        if not runs and host:
            past.diff(host, datetime.datetime.now(datetime.timezone.utc))  # says which hosts there are
        return {"runs": [_plain(run) for run in runs]}, lambda console: report.runs(console, runs)

    return _asked("history.list", json, act)


def show_run(run: str, json: str) -> int:
    """Prints one run; returns the exit code."""

    def act(past: History) -> Answer:
        from rigwright.report import history as report

        found = past.run(run)
        return {"shown": found}, lambda console: report.run(console, found)

    return _asked("history.show", json, act)


def diff(host: str, since: str, json: str) -> int:
    """Prints what became different on a host; returns the exit code."""

    def act(past: History) -> Answer:
        from rigwright.report import history as report

        begin = moment(since)
        found = past.diff(host, begin)
        return {"changed": [_plain(one) for one in found]}, lambda console: report.diff(console, host, begin, found)

    return _asked("history.diff", json, act)


def set_aside() -> int:
    """Renames the history's file, so that the next run begins a new one; returns the exit code."""

    def act(console: Console) -> None:
        aside = escape(str(history.set_aside(history.file())))
        console.print(f"It is now {aside}; the next run begins a new one.", highlight=False)

    return guarded(act)


_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str, now: datetime.datetime | None = None) -> datetime.datetime:
    """The time that `7d`, `12h`, a date or a date with a time means; by this machine's clock. Raises UsageError."""
    now = now or datetime.datetime.now().astimezone()
    span = re.fullmatch(r"(\d{1,6})([mhdw])", text.strip())
    try:
        if span:
            return now - datetime.timedelta(**{_UNITS[span[2]]: int(span[1])})
        return datetime.datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise UsageError("--since", f"'{text}' is no time", "7d, 12h, 30m, 4w, or a date such as 2026-11-14") from None


def _plain(value: Any) -> dict[str, Any]:
    found = dataclasses.asdict(value)
    return {key: one.isoformat() if isinstance(one, datetime.datetime) else one for key, one in found.items()}


def _asked(command: str, json: str, act: Callable[[History], Answer]) -> int:
    """Answers from the history as text, and as one JSON document where that is wanted; returns the exit code."""
    from rigwright.report import document, ending

    def answer(console: Console) -> None:
        with History.open(write=False) as past:
            data, show = act(past)
        if json:
            ending.deliver({**document.document(command, "", 0, None, []), **data}, json)
        if json != "-":
            show(console)

    def failed(error: RigwrightError) -> None:
        if json:
            ending.deliver(document.document(command, "", error.exit_code, error, []), json)

    return guarded(answer, failed)
