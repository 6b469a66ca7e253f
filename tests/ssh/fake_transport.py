"""A transport that answers commands from a function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from rigwright.core.command import Command, Result


class FakeTransport:
    """Answers each command with the result of a function."""

    def __init__(self, answers: Mapping[Command, Result] | Callable[[Command], Result]) -> None:
        self._answers = answers
        self.round_trips = 0
        self.warning = ""
        self.acted = False
        self.as_user = False
        self.ask_password: Callable[[str], str] | None = None
        self.ran: list[Command] = []

    def begin(self, commands: Sequence[Command]) -> None:
        """Does nothing."""

    def connect(self, timeout_s: float | None = None) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def abandon(self) -> None:
        """Does nothing."""

    @contextlib.contextmanager
    def looking(self, *, as_user: bool = False) -> Iterator[None]:
        """Asks nobody; `as_user` is this transport's while the block runs."""
        before, self.as_user = self.as_user, as_user
        try:
            yield
        finally:
            self.as_user = before

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:
        self.round_trips += 1
        self.acted = self.acted or not together
        found: list[Result] = []
        for cmd in commands:
            self.ran.append(cmd)
            found.append(
                self._answers(cmd)
                if callable(self._answers)
                else self._answers.get(cmd, Result(127, b"", b"not recorded"))
            )
            if found[-1].code != 0 and not together:
                return found
        return found
