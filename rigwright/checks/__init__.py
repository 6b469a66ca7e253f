"""Checks: pure functions from facts to findings. They look; they change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "info", "warn", "fail", "unknown"]


@dataclass(frozen=True)
class Finding:
    """What a check saw of one thing, what was wanted, and the line to type or the screw to turn."""

    check: str
    subject: str
    verdict: Verdict
    seen: str
    wanted: str = ""
    cause: str = ""
    fix: str = ""
