"""Whether this process is a fork of a prepared one (`rigwright.cli.prepared`), and the way out where a command needs more than that."""

from __future__ import annotations

import os

NOT_HERE = 97
"""The exit code of a fork that did nothing, because the command has to run in the process that the person has started."""

is_fork = False


def leave() -> None:
    """Ends this process if it is a fork, so that the command starts again in the process that the person has started.

    For what needs the terminal, the session or the control group of that process. Call it before anything is done or printed.
    """
    if is_fork:
        os._exit(NOT_HERE)
