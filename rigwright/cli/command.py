"""A task of Invoke whose body returns the exit code (None: 0), and needs nothing of Invoke's context."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from invoke.exceptions import Exit
from invoke.tasks import Task

from rigwright.cli import mistakes
from rigwright.errors import RigwrightError

Body = Callable[..., int | None]


class Command(Task[Body]):
    """Every argument is a flag unless `positional` names it. A mistake of the user's is one message; a code but 0 ends Invoke."""

    def __init__(self, body: Body, positional: Sequence[str] = (), **options: Any) -> None:
        super().__init__(body, positional=list(positional), **options)

    def argspec(self, body: Body) -> inspect.Signature:
        """The body's own arguments, all of them."""
        return inspect.signature(body)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Runs the body. Raises Exit with its code, or with that of its error."""
        mistakes.read()
        self.times_called += 1
        try:
            code: int = self.body(*args[1:], **options) or 0  # the first is Invoke's context
        except RigwrightError as error:
            raise Exit(f"error {error}", error.exit_code) from None
        if code:
            raise Exit(code=code)
        return code


def command(**options: Any) -> Callable[[Body], Command]:
    """Makes a function a Command, with options of Invoke's `task`."""
    return partial(Command, **options)
