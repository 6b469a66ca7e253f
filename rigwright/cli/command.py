"""A task of Invoke that is made from the options of a command."""

from __future__ import annotations

import inspect
import sys
from dataclasses import MISSING
from typing import Any

from invoke.exceptions import Exit
from invoke.parser.argument import Argument
from invoke.tasks import Task

from rigwright.cli.execution import execute
from rigwright.cli.options import CommandOptions
from rigwright.core.process.program_name import as_typed


class Command(Task[Any]):
    """A command as a task of Invoke: its flags and its help are those of its options."""

    def __init__(self, options: type[CommandOptions]) -> None:
        def body() -> None:
            """Only the docstring is used: `__call__` runs the command."""

        body.__doc__ = as_typed(options.__doc__ or "")
        self.options = options
        super().__init__(body, name=options.command.rpartition(".")[2], positional=list(options.positional))

    def argspec(self, _body: object) -> inspect.Signature:
        """The options as parameters with their defaults; None for the default of an option that has a type or is
        positional: Invoke's parser takes a word for a positional option only while that has no value."""
        without_value = {
            field.name
            for field in self.options.fields()
            if field.default is not MISSING and (field.metadata["type"] or field.name in self.options.positional)
        }
        _, *parameters = inspect.signature(self.options.__init__).parameters.values()
        return inspect.Signature(
            [each.replace(default=None) if each.name in without_value else each for each in parameters]
        )

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """The flags for Invoke's parser. After `COMMAND --help` no flag is positional: the parser would take `--help`
        for its value. After COMMAND alone those with a default are not positional: the parser would miss them."""
        fields = self.options.fields()
        self.optional = tuple(field.name for field in fields if field.metadata["without_value"])
        self.help = {field.name: field.metadata["help"] for field in fields}
        arguments = super().get_arguments(ignore_unknown_help)
        if (self.options.command, "--help") in zip(sys.argv, sys.argv[1:], strict=False):
            for argument in arguments:
                argument.positional = False
        elif sys.argv[-1] == self.options.command:
            defaults = {field.name for field in fields if field.default is not MISSING}
            for argument in arguments:
                argument.positional = argument.positional and argument.name not in defaults
        return arguments

    def __call__(self, *_context: Any, **given: Any) -> int:
        """Runs the command with the typed flags. Raises Exit with its code and message unless the code is 0."""
        self.times_called += 1
        code, message = execute(self.options, {name: value for name, value in given.items() if value is not None})
        if code:
            raise Exit(message or None, code)
        return code
