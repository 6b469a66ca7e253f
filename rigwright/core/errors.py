"""All exceptions of rigwright; the exit codes are those of exit_codes.py.

Every other exception that is not caught is a bug in rigwright and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import traceback

from rigwright.core import exit_codes
from rigwright.core.control_characters import visible
from rigwright.core.process.program_name import as_typed


class RigwrightError(Exception):
    """An error that a person can fix; `exit_code` is the command's exit code."""

    exit_code = exit_codes.ERROR

    def __init__(self, where: str, found: str, expected: str = "", fix: str = "", brief: str = "") -> None:
        super().__init__(found)
        self.where = where
        self.found = found
        self.expected = expected
        self.fix = fix
        self.brief = brief or found
        """What was found, in a few words, such as `port 22 is closed`: for a line that says what a wait sees."""

    def __reduce__(self) -> tuple[type[RigwrightError], tuple[str, str, str, str, str]]:
        return type(self), (self.where, self.found, self.expected, self.fix, self.brief)

    def __str__(self) -> str:
        """The message, up to three lines: the place and the problem, the expected value, the fix."""
        lines = [f"{self.where}: {self.found}" if self.where else self.found]
        if self.expected:
            lines.append(f"  expected: {as_typed(self.expected)}")
        if self.fix:
            lines.append(f"  fix:      {as_typed(self.fix)}")
        return visible("\n".join(lines))


class UsageError(RigwrightError):
    """The command line is wrong."""


class InputError(RigwrightError):
    """An inventory, playbook, template or catalogue file is wrong."""


class HistoryError(RigwrightError):
    """The history file is damaged, not writable, or belongs to another program or version."""


class HostError(RigwrightError):
    """The host was reached, but its state or answer stops the run."""


class NoRoot(HostError):
    """The host was reached, and gave no root shell. A rule of sudo may come late after a boot, so waiting may help."""


class ConsentError(RigwrightError):
    """A change needs a consent that was not given."""

    exit_code = exit_codes.DIFFERS


class Interrupted(RigwrightError):
    """Ctrl-C, SIGTERM or SIGHUP stopped the run; jobs that were started on a host continue there."""

    exit_code = exit_codes.INTERRUPTED


class Rebooting(Interrupted):
    """The machine that rigwright runs on reboots; the run goes on by itself after that."""


class Unreachable(RigwrightError):
    """A verified, authenticated session with the host could not be opened."""

    exit_code = exit_codes.UNREACHABLE


class HostKeyRefused(Unreachable):
    """The key that a host sends is not one that is known for it. It may be back after the next boot."""


class LoginRefused(Unreachable):
    """The host takes none of the ssh keys for the user. It may take them later, or after the next boot."""


def unexpected(where: str, error: BaseException) -> HostError:
    """The error for an exception that nothing else handles: no memory, or a bug, whose traceback is printed."""
    if isinstance(error, MemoryError):
        fix = "end other programs here; then run the same command again, which continues from there"
        return HostError(where, "this machine has no memory left", "some memory", fix)
    with contextlib.suppress(Exception):
        traceback.print_exception(error)
    problem = f"a bug in rigwright ({type(error).__name__}: {error})"
    return HostError(where, problem, "a run without one", "report it with the traceback")
