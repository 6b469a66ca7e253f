"""Finds operations and checks by the name that a playbook uses: MODULE.FUNCTION of rigwright.operations or rigwright.checks."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from rigwright.core import submodules

Kind = Literal["operations", "checks"]


@cache
def find(kind: Kind, name: str) -> Callable[..., Any] | None:
    """The function that is declared as operation (or check) of this name, else None. Imports only its own module."""
    module_name, _, function_name = name.partition(".")
    package = importlib.import_module(f"rigwright.{kind}")
    if not submodules.load(package.__name__, module_name) or not package.declared(name):
        return None
    return getattr(sys.modules[f"{package.__name__}.{module_name}"], function_name)  # type: ignore[no-any-return]


def known(kind: Kind) -> dict[str, Callable[..., Any]]:
    """Every operation (or check) by name, in the order of modules and of definition."""
    package = importlib.import_module(f"rigwright.{kind}")
    functions: dict[str, Callable[..., Any]] = {}
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{module_info.name}")
        names = [f"{module_info.name}.{name}" for name in vars(module)]
        functions.update({name: function for name in names if (function := find(kind, name)) is not None})
    return functions
