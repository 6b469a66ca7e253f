"""Runs a command in this process, without a command line."""

from __future__ import annotations

import sys

from rigwright.cli import execution, program
from rigwright.core.errors import UsageError

OPTIONS = {one.command: one for one in program.commands()}


def run_command(name: str, /, **given: object) -> int:
    """Runs a command with the values of these flags; returns its exit code."""
    try:
        options = execution.options_with(OPTIONS[name], given)
    except UsageError as error:
        print(f"error {error}", file=sys.stderr)
        return error.exit_code
    return execution.run(options)
