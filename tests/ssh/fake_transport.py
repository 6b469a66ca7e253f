"""A transport that answers commands from a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rigwright.core.command import Command, Result
from rigwright.ssh.transport import CONNECT_S


class FakeTransport:
    """Answers each command with the result of a function."""

    def __init__(self, answers: Mapping[Command, Result] | Callable[[Command], Result]) -> None:
        self._answers = answers
        self.round_trips = 0
        self.warning = ""
        self.acted = False
        self.ran: list[Command] = []

    def begin(self, commands: Sequence[Command]) -> None:
        """Does nothing."""

    def connect(self, timeout_s: float = CONNECT_S) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def abandon(self) -> None:
        """Does nothing."""

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
