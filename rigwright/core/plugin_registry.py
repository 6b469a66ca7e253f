"""Declarations of operations and checks, by their name in a playbook: MODULE.FUNCTION."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

D = TypeVar("D")
F = TypeVar("F", bound=Callable[..., Any])


def plugin_name(function: Callable[..., Any]) -> str:
    """The name of an operation or check in a playbook: MODULE.FUNCTION."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def registering(declarations: dict[str, D], declaration: D) -> Callable[[F], F]:
    """A decorator that stores the declaration by the function's name and returns the function unchanged."""

    def declare(function: F) -> F:
        declarations[plugin_name(function)] = declaration
        return function

    return declare
