"""The programs `rigwright` and `.venv/bin/invoke` as processes: a command whose flags are written out is run without Invoke's parser.

Invoke's configuration, loader, parser and executor take a tenth of the processor time of a short command, and commands use none of them.
So `COMMAND --flag VALUE ...` with exact names is read here. Everything else is read by Invoke: a mistake, an abbreviation, a short flag, a
positional word, --help, --list, several commands, the lab.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from rigwright.cli import prepared_client
from rigwright.core import process_end

if TYPE_CHECKING:
    from rigwright.cli.options import CommandOptions


def rigwright() -> NoReturn:
    """The program `rigwright` as a process of its own, or in a fork of a prepared one."""
    prepared_client.run("rigwright")
    process_end.run(_rigwright)


def invoke() -> NoReturn:
    """The program `invoke` of this checkout's .venv as a process of its own, or in a fork of a prepared one."""
    prepared_client.run("invoke")
    process_end.run(_invoke)


def _rigwright() -> None:
    if not _directly(sys.argv[1:]):
        from rigwright.cli import program

        program.main()


def _invoke() -> None:
    if not (_is_ours("tasks.py") and _directly(sys.argv[1:])):
        from rigwright.core import lean_invoke  # noqa: F401  # before Invoke

        from invoke.main import program  # isort: skip

        program.run()


def _is_ours(file: str) -> bool:
    """Whether the tasks of the current folder are those of this checkout."""
    from rigwright.core import shipped_files

    try:
        return os.path.samefile(file, shipped_files.CHECKOUT / file)
    except OSError:
        return False


def _directly(words: Sequence[str]) -> bool:
    """Runs the command of the words where they are plain; returns False, and does nothing, for words that Invoke must read.

    Raises SystemExit with the exit code of the command where that is not 0.
    """
    read = plain(words)
    if read is None or any(name.startswith("INVOKE_") for name in os.environ):
        return False
    from rigwright.cli.execution import execute
    from rigwright.core import process_start

    process_start.prepare()
    code, message = execute(*read)
    if message:
        print(message, file=sys.stderr)
    if code:
        sys.exit(code)
    return True


def plain(words: Sequence[str]) -> tuple[type[CommandOptions], dict[str, Any]] | None:
    """The command and the values of its flags, as Invoke would read them; None for words that are more than its name and exact flags."""
    from dataclasses import MISSING

    from rigwright.cli.options import CommandOptions

    options = _named(words[0], CommandOptions) if words else None
    if options is None:
        return None
    fields = options.fields()
    values: dict[str, Any] = {field.name: None if field.default is MISSING else field.default for field in fields}
    flags = {f"--{field.name.replace('_', '-')}": field for field in fields}
    seen: set[str] = set()
    rest = list(words[1:])
    while rest:
        word, joined, value = rest.pop(0).partition("=")
        field = flags.get(word)
        if field is None or word in seen or field.metadata["without_value"]:
            return None
        seen.add(word)
        if field.default is False:
            if joined:
                return None
            values[field.name] = True
        elif field.default is MISSING or field.default is None or isinstance(field.default, str):
            if not joined:
                value = rest.pop(0) if rest else "--"
            if not value or (value.startswith("-") and value != "-"):
                return None
            values[field.name] = value
        else:
            return None
    if any(values[name] is None for name in options.positional):
        return None
    return options, values


def _named(command: str, among: type[CommandOptions]) -> type[CommandOptions] | None:
    """The options of the command of rigwright with this name."""
    for one in among.__subclasses__():
        found = one if one.command == command != "" else _named(command, one)
        if found and found.__module__ == "rigwright.cli.options":
            return found
    return None
