"""A task of Invoke that is made from the options of a command."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from typing import Any

from invoke.exceptions import Exit
from invoke.parser.argument import Argument
from invoke.tasks import Task

from rigwright.cli import usage_hint
from rigwright.cli.options import CommandOptions
from rigwright.core.errors import RigwrightError, UsageError
from rigwright.core.program_name import as_typed, program_name


def run(options: CommandOptions) -> int:
    """Runs the command that the options are of; returns its exit code."""
    module, _, function = options.function.partition(":")
    return getattr(importlib.import_module(module), function)(options) or 0


class Command(Task[Any]):
    """A command as a task of Invoke: its flags and its help are those of its options."""

    def __init__(self, options: type[CommandOptions]) -> None:
        def body(**given: Any) -> int:
            return run(options(**given))

        body.__doc__ = as_typed(
            options.__doc__ or ""
        )  # the class itself cannot be the body: Invoke copies a body's attributes
        self.options = options
        fields = dataclasses.fields(options)
        super().__init__(
            body,
            name=options.command.rpartition(".")[2],
            positional=list(options.positional),
            optional=[one.name for one in fields if one.metadata["without_value"]],
            help={one.name: one.metadata["help"] for one in fields},
        )

    def argspec(self, _body: object) -> inspect.Signature:
        """The options as parameters, with their defaults."""
        empty = inspect.Parameter.empty
        return inspect.Signature(
            [
                inspect.Parameter(
                    one.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=empty if one.default is dataclasses.MISSING else one.default,
                )
                for one in dataclasses.fields(self.options)
            ]
        )

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """The flags for Invoke's parser. After `COMMAND --help` none is positional, or the parser takes `--help` as its value."""
        arguments = super().get_arguments(ignore_unknown_help)
        if (self.options.command, "--help") in zip(sys.argv, sys.argv[1:], strict=False):
            for argument in arguments:
                argument.positional = False
        return arguments

    def __call__(self, *_context: Any, **given: Any) -> int:
        """Runs the command with the flags that were typed. Raises Exit with its code when that is not 0."""
        usage_hint.read()
        self.times_called += 1
        try:
            for one in dataclasses.fields(self.options):
                if one.metadata["without_value"] and given.get(one.name) is True:
                    given[one.name] = one.metadata["without_value"]
                if one.default is dataclasses.MISSING and given.get(one.name) is None:
                    flag, command = f"--{one.name.replace('_', '-')}", self.options.command
                    fix = f"{program_name()} {command} --help"
                    raise UsageError(command, f"{flag} is missing", f"{flag} with {one.metadata['help']}", fix)
            code: int = self.body(**given)
        except RigwrightError as error:
            raise Exit(f"error {error}", error.exit_code) from None
        if code:
            raise Exit(code=code)
        return code
