"""Runs a command in this process, without a command line."""

from __future__ import annotations

from rigwright.cli import command, program

OPTIONS = {one.command: one for one in program.commands()}


def run_command(name: str, **given: object) -> int:
    """Runs a command with these options; returns its exit code."""
    return command.run(OPTIONS[name](**given))
