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
    at = next((number for number, part in enumerate(parts) if part in KINDS), len(parts))
    of_feature = 0 < at < len(parts) and parts[:at] != ["rigwright"]
    module = features.prefix(".".join(parts[:at])) if of_feature else parts[min(at + 1, len(parts) - 1)]
    return f"{module}.{function.__name__}"
