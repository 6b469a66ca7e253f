"""`invoke history.list`, `history.show`, `history.diff` and `history.set-aside`: the recorded runs."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable

from rich.console import Console

from rigwright import history
from rigwright.cli import options as cli
from rigwright.cli.answer import Answer, Options, answered
from rigwright.core import features
from rigwright.facts.plain import plain
from rigwright.history import History
from rigwright.report.labels import as_is
from rigwright.report.tables import history as table


def _of_history(find: Callable[[Options, History], Answer]) -> Callable[[Options], int]:
    """The command whose answer `find` returns from the history, which is opened for reading."""

    @functools.wraps(find)
    def open_and_find(options: Options, _console: Console) -> Answer:
        with History.open(write=False) as past:
            return find(options, past)

    return answered(open_and_find)


@_of_history
def list_runs(options: cli.HistoryListOptions, past: History) -> Answer:
    """The newest runs."""
    runs = past.runs(options.limit or -1, options.host)
    if not runs and options.host:
        past.diff(options.host, datetime.datetime.now(datetime.timezone.utc))  # raises an error with the known hosts
    return Answer(lambda console: table.runs(console, runs), {"runs": [plain(run) for run in runs]})


@_of_history
def show(options: cli.HistoryShowOptions, past: History) -> Answer:
    """One run."""
    run = past.run(options.run)
    return Answer(lambda console: table.run(console, run), {"shown": run})


@_of_history
def diff(options: cli.HistoryDiffOptions, past: History) -> Answer:
    """What changed on a host."""
    changes = [*past.diff(options.host, options.since)]
    for changes_of in features.functions("history", "changes"):
        changes += changes_of(past, past.named(options.host), options.since)
    changes.sort(key=lambda change: change.at)
    data = {"changed": [plain(change) for change in changes]}
    return Answer(lambda console: table.diff(console, options.host, options.since, changes), data)


@answered
def set_aside(_options: cli.HistorySetAsideOptions, console: Console) -> None:
    """Renames the history file, so that the next run creates a new one."""
    new = as_is(str(history.set_aside(history.file())))
    console.print(f"It is now {new}; the next run creates a new one.", highlight=False)
