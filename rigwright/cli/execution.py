"""Runs a command with the typed options; returns its exit code and the message of its error."""

from __future__ import annotations

import importlib
import sys
from dataclasses import MISSING
from typing import Any

from rigwright.cli.options import CommandOptions
from rigwright.core import exit_codes
from rigwright.core.errors import RigwrightError, UsageError
from rigwright.core.process import interruption, streams
from rigwright.core.process.program_name import program_name


def run(options: CommandOptions) -> int:
    """Runs the command that the options are of; returns its exit code."""
    module, _, function = options.function.partition(":")
    return getattr(importlib.import_module(module), function)(options) or 0


def execute(options: type[CommandOptions], flags: dict[str, Any]) -> tuple[int, str]:
    """Runs a command with the values of its flags; returns its exit code, and the message of an error, or "".

    SIGTERM and SIGHUP interrupt it as Ctrl-C does. It is an error if stdout cannot be written, as on a full disk.
    """
    try:
        made = options_with(options, flags)
        with interruption.raised():
            code = run(made)
    except RigwrightError as error:
        from rigwright.report.wrapping import message

        return error.exit_code, message(f"error {error}", sys.stderr)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED, "interrupted"
    if problem := streams.write_problem():
        print(f"error stdout: cannot be written: {problem}", file=sys.stderr)
        code = code or exit_codes.ERROR
    interruption.end_now_if_left_behind(code)
    return code, ""


def options_with(options: type[CommandOptions], flags: dict[str, Any]) -> CommandOptions:
    """The options with the values of the flags. Raises UsageError; a JSON document gets the error too."""
    try:
        for field in options.fields():
            if field.metadata["without_value"] and flags.get(field.name) is True:
                flags[field.name] = field.metadata["without_value"]
            if field.default is MISSING and flags.get(field.name) is None:
                flag, command = f"--{field.name.replace('_', '-')}", options.command
                fix = f"{program_name()} {command} --help"
                raise UsageError(command, f"{flag} is missing", f"{flag} with {field.metadata['help']}", fix)
        return options(**flags)
    except UsageError as error:
        if flags.get("json"):
            from rigwright.cli.answer import write_error

            write_error(options.command, error, flags["json"])
        raise
