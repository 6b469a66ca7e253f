"""Commands for what runs left on this machine."""

from __future__ import annotations

from rigwright.cli import words
from rigwright.cli.command import command


@command(
    name="list",
    help={"host": "only runs on this host", "limit": "how many, newest first; 0 for all", "json": words.HELP["json"]},
)
def list_(host: str = "", limit: str = "20", json: str = "") -> int:
    """The runs that were recorded on this machine, newest first. Asks no host."""
    from rigwright import past

    return past.list_runs(host, limit, json)


@command(
    name="show",
    positional=["run"],
    help={"run": "its id as history.list shows it, the beginning of one, or `last`", "json": words.HELP["json"]},
)
def show(run: str, json: str = "") -> int:
    """One recorded run: what became of each host, the changes that were made, what was found. Asks no host."""
    from rigwright import past

    return past.show_run(run, json)


@command(
    name="diff",
    positional=["host"],
    help={
        "host": "a host as the runs named it",
        "since": "7d, 12h, 30m, 4w, or a date such as 2026-11-14",
        "json": words.HELP["json"],
    },
)
def diff(host: str, since: str = "7d", json: str = "") -> int:
    """What became different on a host: kernel, driver, GPUs, firmware as the runs saw them, and what rigwright changed."""
    from rigwright import past

    return past.diff(host, since, json)


@command(
    name="set-aside",
)
def set_aside() -> int:
    """Rename the file of the history, damaged or not; the next run begins a new one. Deletes nothing."""
    from rigwright import past

    return past.set_aside()
