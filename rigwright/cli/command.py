"""A task of Invoke that is made from the options of a command."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import MISSING
from typing import Any

from invoke.exceptions import Exit
from invoke.parser.argument import Argument
from invoke.tasks import Task

from rigwright.cli.options import CommandOptions
from rigwright.core import interruption, standard_streams
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

        # The class itself cannot be the body: Invoke copies a body's attributes.
        body.__doc__ = as_typed(options.__doc__ or "")
        self.options = options
        super().__init__(body, name=options.command.rpartition(".")[2], positional=list(options.positional))

    def argspec(self, _body: object) -> inspect.Signature:
        """The options as parameters, with their defaults."""
        self.options.fields()
        signature = inspect.signature(self.options.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """The flags for Invoke's parser. After `COMMAND --help` none is positional, or the parser takes `--help` as its value."""
        fields = self.options.fields()
        self.optional = tuple(field.name for field in fields if field.metadata["without_value"])
        self.help = {field.name: field.metadata["help"] for field in fields}
        arguments = super().get_arguments(ignore_unknown_help)
        if (self.options.command, "--help") in zip(sys.argv, sys.argv[1:], strict=False):
            for argument in arguments:
                argument.positional = False
        return arguments

    def __call__(self, *_context: Any, **given: Any) -> int:
        """Runs the command with the flags that were typed. Raises Exit with its code when that is not 0.

        SIGTERM and SIGHUP interrupt it as Ctrl-C does. A text that could not be written, as to a full disk, is an error.
        """
        self.times_called += 1
        try:
            for field in self.options.fields():
                if field.metadata["without_value"] and given.get(field.name) is True:
                    given[field.name] = field.metadata["without_value"]
                if field.default is MISSING and given.get(field.name) is None:
                    flag, command = f"--{field.name.replace('_', '-')}", self.options.command
                    fix = f"{program_name()} {command} --help"
                    raise UsageError(command, f"{flag} is missing", f"{flag} with {field.metadata['help']}", fix)
            with interruption.raised():
                code: int = self.body(**given)
        except RigwrightError as error:
            from rigwright.report.wrapping import message

            raise Exit(message(f"error {error}", sys.stderr), error.exit_code) from None
        except KeyboardInterrupt:
            raise Exit("interrupted", 130) from None
        if problem := standard_streams.full(sys.stdout):
            print(f"error stdout: cannot be written: {problem}", file=sys.stderr)
            code = code or 1
        interruption.end_now_if_left_behind(code)
        if code:
            raise Exit(code=code)
        return code
