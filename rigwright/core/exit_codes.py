"""The exit codes of all commands; docs/reference/errors.md says when a command has which one."""

from __future__ import annotations

from collections.abc import Collection

DONE, ERROR, DIFFERS, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130
"""DIFFERS: something is not as expected, or a change needs a yes. UNREACHABLE: a host could not be reached."""


def of_hosts(codes: Collection[int]) -> int:
    """The exit code of a command whose hosts have these codes: the most important one."""
    return next((code for code in (INTERRUPTED, ERROR, UNREACHABLE, DIFFERS) if code in codes), DONE)
