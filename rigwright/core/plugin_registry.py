"""Declarations of operations and checks, by their name in a playbook: MODULE.FUNCTION."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

D = TypeVar("D")
F = TypeVar("F", bound=Callable[..., Any])


class Registry(Generic[D]):
    """The declarations of one kind of function."""

    def __init__(self) -> None:
        self._declarations: dict[str, D] = {}

    def decorator(self, declaration: D) -> Callable[[F], F]:
        """A decorator that records the declaration and returns the function unchanged."""

        def declare(function: F) -> F:
            self._declarations[f"{function.__module__.rpartition('.')[2]}.{function.__name__}"] = declaration
            return function

        return declare

    def find(self, name: str) -> D | None:
        """The declaration of MODULE.FUNCTION; None if its module is not imported or declares no such function."""
        return self._declarations.get(name)
