"""Names of operations and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rigwright.core import features

KINDS = ("operations", "checks")
"""The modules or packages of a feature that hold its operations and checks, and the packages of those of the system."""


def plugin_name(function: Callable[..., Any]) -> str:
    """The name of an operation or check in a playbook: MODULE.FUNCTION, or for one of a feature PREFIX.FUNCTION."""
    parts = function.__module__.split(".")
    at = next(number for number, part in enumerate(parts) if part in KINDS)
    of_system = parts[at + 1] if parts[:at] == ["rigwright"] else ""
    return f"{of_system or features.prefix('.'.join(parts[:at]))}.{function.__name__}"
