"""Runs a command that connects to no host: its text, its JSON document and its errors."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, TypeVar

from msgspec import Struct
from rich.console import Console

from rigwright.cli.options import CommandOptions
from rigwright.core import exit_codes
from rigwright.core.errors import RigwrightError, UsageError

Options = TypeVar("Options", bound=CommandOptions)


class Answer(Struct, frozen=True):
    """What a command found. `show` writes it as text.

    `data` are the keys that its JSON document has besides those of every document; with `whole` they are the document.
    """

    show: Callable[[Console], None] = lambda _console: None
    data: Mapping[str, Any] | None = None
    exit_code: int = 0
    whole: bool = False


def answer(
    options: CommandOptions, find: Callable[[Console], Answer | None], on_error: Mapping[str, Any] | None = None
) -> int:
    """Writes the answer of a command, or its error; returns the exit code.

    With `--json FILE` the document goes to FILE besides the text; with `--json -` it goes to stdout in place of the
    text. An error is one message on stderr, and the `error` of the document, which then has `on_error` for its data.
    `find` may write to the console itself.
    """
    target = getattr(options, "json", "")
    try:
        from rigwright.report.console import console_on

        console = console_on(emoji=False, soft_wrap=not sys.stdout.isatty())
        result = find(console) or Answer()
        if target:
            _write(options.command, result, None, target)
        if target != "-":
            result.show(console)
        sys.stdout.flush()
        return result.exit_code
    except RigwrightError as error:
        from rigwright.report.wrapping import message

        print(message(f"error {error}", sys.stderr), file=sys.stderr)
        if target:
            write_error(options.command, error, target, on_error)
        return error.exit_code
    except BrokenPipeError:  # the reader of stdout ended, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"error stdout: cannot be written: {error.strerror}", file=sys.stderr)
        return exit_codes.ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return exit_codes.INTERRUPTED


def answered(find: Callable[[Options, Console], Answer | None]) -> Callable[[Options], int]:
    """The command whose answer `find` returns: prints it and returns the exit code."""

    @wraps(find)
    def command(options: Options) -> int:
        return answer(options, partial(find, options))

    command.__annotations__ = {"options": next(iter(find.__annotations__.values())), "return": "int"}
    return command


def write_error(command: str, error: RigwrightError, target: str, data: Mapping[str, Any] | None = None) -> None:
    """Writes the JSON document of a command that an error ended, if it can be written; `data` as in Answer."""
    with contextlib.suppress(UsageError):  # it may be the error that is to be written
        _write(command, Answer(data=data, exit_code=error.exit_code), error, target)


def _write(command: str, result: Answer, error: RigwrightError | None, target: str) -> None:
    """Writes the JSON document to a file, or to stdout for `-`. Raises UsageError when the file cannot be written."""
    from rigwright.report import json_document, output_files

    data = dict(result.data or {})
    if not result.whole or error:
        data = {**json_document.document(command, "", result.exit_code, error, []), **data}
    output_files.write_json(data, target)
