"""`invoke history.list`, `history.show`, `history.diff` and `history.set-aside`: the recorded runs."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape

from rigwright import history
from rigwright.cli.answer import Answer, answer
from rigwright.cli.options import (
    CommandOptions,
    HistoryDiffOptions,
    HistoryListOptions,
    HistorySetAsideOptions,
    HistoryShowOptions,
)
from rigwright.core import numbers
from rigwright.core.errors import UsageError
from rigwright.history import History
from rigwright.report.tables import history as table


def list_runs(options: HistoryListOptions) -> int:
    """Prints the newest runs; returns the exit code."""

    def find(past: History) -> Answer:
        most = numbers.whole("--limit", options.limit, 0, "runs", expected="a whole number; 0 for all of them")
        runs = past.runs(most or -1, options.host)
        if not runs and options.host:
            past.diff(
                options.host, datetime.datetime.now(datetime.timezone.utc)
            )  # raises an error with the known hosts
        return Answer(lambda console: table.runs(console, runs), {"runs": [_plain(run) for run in runs]})

    return _answer(options, find)


def show(options: HistoryShowOptions) -> int:
    """Prints one run; returns the exit code."""

    def find(past: History) -> Answer:
        run = past.run(options.run)
        return Answer(lambda console: table.run(console, run), {"shown": run})

    return _answer(options, find)


def diff(options: HistoryDiffOptions) -> int:
    """Prints what changed on a host; returns the exit code."""

    def find(past: History) -> Answer:
        since = parse_time(options.since)
        changes = past.diff(options.host, since)
        return Answer(
            lambda console: table.diff(console, options.host, since, changes),
            {"changed": [_plain(one) for one in changes]},
        )

    return _answer(options, find)


def set_aside(options: HistorySetAsideOptions) -> int:
    """Renames the history file, so that the next run creates a new one; returns the exit code."""

    def rename(console: Console) -> None:
        new = escape(str(history.set_aside(history.file())))
        console.print(f"It is now {new}; the next run creates a new one.", highlight=False)

    return answer(options, rename)


def _answer(options: CommandOptions, find: Callable[[History], Answer]) -> int:
    """Opens the history for `find`; returns the exit code."""

    def open_and_find(_console: Console) -> Answer:
        with History.open(write=False) as past:
            return find(past)

    return answer(options, open_and_find)


_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_time(text: str, now: datetime.datetime | None = None) -> datetime.datetime:
    """The time of --since: `7d` is seven days ago; also a date, or a date with a time. Raises UsageError."""
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
