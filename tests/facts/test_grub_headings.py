"""Headings of grub.cfg: their words are those of a shell, whatever the file has."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable

from rigwright.facts import grub


def words(split: Callable[[str], list[str]], line: str) -> list[str] | None:
    try:
        return split(line)
    except ValueError:
        return None


def test_words_are_those_of_shlex() -> None:
    chance = random.Random(3)
    for _ in range(20_000):
        line = "".join(chance.choice("ab'\"\\ \t\x0b#$") for _ in range(chance.randint(0, 9)))
        assert words(grub._words_of, line) == words(shlex.split, line), line
