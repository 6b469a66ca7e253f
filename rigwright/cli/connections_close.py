"""The command `connections.close`: closes the connections that runs with --keep have kept."""

from __future__ import annotations

from rich.console import Console

from rigwright.cli.answer import Answer, answered
from rigwright.cli.options import ConnectionsCloseOptions
from rigwright.report.labels import as_is
from rigwright.ssh import kept


@answered
def connections_close(_options: ConnectionsCloseOptions, _console: Console) -> Answer:
    """The hosts whose connections were closed."""
    hosts = kept.close_all()
    text = f"closed: {', '.join(map(as_is, hosts))}" if hosts else "no connection is kept"
    return Answer(lambda console: console.print(text), {"closed": hosts})
