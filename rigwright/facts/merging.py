"""Asks a program of the host once for what several facts ask it for, and gives each fact the answer that it would have
got alone.

A host starts a process for each question, and dpkg-query reads its whole database each time. So commands of a batch
that differ only in what they ask for (packages, units, files) become one. How that is done stands beside each fact:
`MERGER` in dpkg.py, systemd.py and files.py. An answer that cannot be split with certainty is not split: its commands
then run as they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Command, Result
from rigwright.facts import Merger, files, systemd
from rigwright.facts.apt import dpkg

MERGERS: tuple[Merger, ...] = (dpkg.MERGER, systemd.MERGER, files.MERGER)
MOST = 60
"""Commands in one; a program's answer has a limit."""
_LONGEST_KEPT = 500_000
"""Bytes of an answer whose parts are kept for other hosts."""


class Merged(Struct, frozen=True):
    """A command that stands for others; `numbers` are their positions in the batch."""

    command: Command
    numbers: tuple[int, ...]
    merger: Merger

    def answers(self, result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
        """The answer of each of the commands at `numbers`; None for each that is then asked alone, also for all of a
        text of another form."""
        untold = [None] * len(commands)
        if result.stdout.count(b"\n") > host_text.LINES or result.cut:
            return untold
        split = _split if len(result.stdout) <= _LONGEST_KEPT else _split.__wrapped__
        try:
            return split(self.merger, result, commands) or untold
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            return untold


@lru_cache(maxsize=48)  # hosts have equal packages, units and files
def _split(merger: Merger, result: Result, commands: tuple[Command, ...]) -> Sequence[Result] | None:
    return merger.split(result, commands)


@lru_cache(maxsize=8)
def merged(commands: tuple[Command, ...]) -> tuple[Merged, ...]:
    """The commands that each stand for several of the batch; a command is in one of them at most. The same for all
    hosts of a run."""
    found = []
    kinds: dict[tuple[Merger, Hashable], list[int]] = {}
    for number, command in enumerate(commands):
        for merger in MERGERS:
            if command.reads and not command.stdin and not command.long and (kind := merger.kind(command)):
                kinds.setdefault((merger, (kind, command.timeout_s, command.cache_key)), []).append(number)
    for (merger, _), every in kinds.items():
        for at in range(0, len(every), MOST):
            numbers = tuple(every[at : at + MOST])
            if len(numbers) > 1:
                found.append(Merged(merger.together([commands[number] for number in numbers]), numbers, merger))
    return tuple(found)
