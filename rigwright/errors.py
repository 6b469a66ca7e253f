"""Every exception of rigwright.

    RigwrightError            something a person can act on: where, found, wanted, todo; no traceback
      UsageError              the command line is wrong (exit 1)
      InputError              a file that the user wrote is wrong (exit 1)
      HistoryError            the history of runs cannot be used; runs go on without it (exit 1)
      HostError               a host answered, and the answer stops the run (exit 1)
      ConsentError            a change needs a yes that was not given (exit 2)
      Interrupted             Ctrl-C (exit 130)
      Unreachable             refused, timed out, host key, authentication (exit 3)

Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What would steer a terminal; texts of hosts and files reach messages."""


def printable(text: str) -> str:
    """A text that steers no terminal: control characters but line ends and tabs are question marks."""
    return _CONTROL.sub("?", text)


class RigwrightError(Exception):
    """A mistake or a state that a person can mend; `exit_code` is what the command returns for it."""

    exit_code = 1

    def __init__(self, where: str, found: str, wanted: str = "", todo: str = "") -> None:
        super().__init__(found)
        self.where = where
        self.found = found
        self.wanted = wanted
        self.todo = todo

    def __reduce__(self) -> tuple[type[RigwrightError], tuple[str, str, str, str]]:
        return type(self), (self.where, self.found, self.wanted, self.todo)

    def __str__(self) -> str:
        """One message of up to three lines: where and what, what was wanted, what to do."""
        lines = [f"{self.where}: {self.found}" if self.where else self.found]
        if self.wanted:
            lines.append(f"  wanted: {self.wanted}")
        if self.todo:
            lines.append(f"  do:     {self.todo}")
        return printable("\n".join(lines))


class UsageError(RigwrightError):
    """The command line asks for something that cannot be."""


class InputError(RigwrightError):
    """An inventory, playbook, template or catalogue file is wrong."""


class HistoryError(RigwrightError):
    """The file of past runs is damaged, of another program or a newer rigwright, or may not be written."""


class HostError(RigwrightError):
    """The host was reached and something on it stops the run."""


class ConsentError(RigwrightError):
    """A change wants a yes that was not given."""

    exit_code = 2


class Interrupted(RigwrightError):
    """The person at the terminal stopped the run; jobs that were started on a host go on there."""

    exit_code = 130


class Unreachable(RigwrightError):
    """No verified, authenticated session with the host could be made."""

    exit_code = 3
