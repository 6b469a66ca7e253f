"""The ids of runs: the local time at which a run began, and eight hexadecimal digits of chance."""

from __future__ import annotations

import os
import re
import time

EXAMPLE = "20261122-141753-136a7c05"
_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")


def new() -> str:
    """A new id, such as EXAMPLE."""
    return time.strftime("%Y%m%d-%H%M%S-") + os.urandom(4).hex()


def is_beginning(text: str) -> bool:
    """Whether a text is an id or the beginning of an id."""
    return bool(_ID.fullmatch(f"{text}{EXAMPLE[len(text) :]}"))
