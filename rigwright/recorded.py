"""A transport that answers from a table: for tests, and to replay what a host once said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rigwright.shell import Command, Result
from rigwright.transport import CONNECT_S


class Recorded:
    """Answers from a table: for tests, and to replay what a host once said."""

    def __init__(self, answers: Mapping[Command, Result] | Callable[[Command], Result]) -> None:
        self._answers = answers
        self.round_trips = 0
        self.ran: list[Command] = []

    def connect(self, timeout_s: float = CONNECT_S) -> None:
        """There is nothing to connect to."""

    def close(self) -> None:
        """There is nothing to close."""

    def abandon(self) -> None:
        """There is nothing that waits."""

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:
        self.round_trips += 1
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
