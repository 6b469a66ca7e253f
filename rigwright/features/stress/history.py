"""What the history shows of stresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from rigwright.features.stress.measured_before import became as changes

__all__ = ["changes", "show"]


def show(_console: Console, _host: Mapping[str, Any]) -> None:
    """Nothing: the findings of a recorded stress say it."""
