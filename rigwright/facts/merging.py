"""Merges the commands of several facts into one, and splits its answer into the answer that each command would give.

Each command costs the host a process, and dpkg-query reads its whole database each time. Commands of a batch that
differ only in their packages, units or files become one: `MERGER` in dpkg.py, systemd.py and files.py. If an answer
cannot be split with certainty, its commands run one by one.
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
"""Commands that become one; the length of an answer is limited."""
_LONGEST_KEPT = 500_000
"""Bytes of an answer that is split once for all hosts that give it."""


class Merged(Struct, frozen=True):
    """A command that stands for others; `numbers` are their positions in the batch."""

    command: Command
    numbers: tuple[int, ...]
    merger: Merger

    def answers(self, result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
        """The answer of each command; None for a command that must run alone."""
        unknown = [None] * len(commands)
        if result.stdout.count(b"\n") > host_text.LINES or result.cut:
            return unknown
        split = _split if len(result.stdout) <= _LONGEST_KEPT else _split.__wrapped__
        try:
            return split(self.merger, result, commands) or unknown
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            return unknown


@lru_cache(maxsize=48)  # hosts have equal packages, units and files
def _split(merger: Merger, result: Result, commands: tuple[Command, ...]) -> Sequence[Result] | None:
    return merger.split(result, commands)


@lru_cache(maxsize=8)
def merged(commands: tuple[Command, ...]) -> tuple[Merged, ...]:
    """The merged commands of a batch; each command of the batch is in at most one of them."""
    kinds: dict[tuple[Merger, Hashable], list[int]] = {}
    for number, command in enumerate(commands):
        for merger in MERGERS:
            if command.reads and not command.stdin and not command.long and (kind := merger.kind(command)):
                kinds.setdefault((merger, (kind, command.timeout_s, command.cache_key)), []).append(number)
    parts = ((merger, tuple(of[at : at + MOST])) for (merger, _), of in kinds.items() for at in range(0, len(of), MOST))
    return tuple(
        Merged(merger.together([commands[number] for number in numbers]), numbers, merger)
        for merger, numbers in parts
        if len(numbers) > 1
    )
