"""Names of operations and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def plugin_name(function: Callable[..., Any]) -> str:
    """The name of an operation or check in a playbook: MODULE.FUNCTION."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
