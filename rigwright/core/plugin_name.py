"""Names of operations and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rigwright.core import features

KINDS = ("operations", "checks")
"""The modules of a feature that hold operations and checks, and the packages of those of the system."""


def plugin_name(function: Callable[..., Any]) -> str:
    """The name of an operation or check in a playbook: MODULE.FUNCTION, or for one of a feature PREFIX.FUNCTION."""
    package, _, module = function.__module__.rpartition(".")
    if module in KINDS:
        module = features.prefix(package)
    return f"{module}.{function.__name__}"
