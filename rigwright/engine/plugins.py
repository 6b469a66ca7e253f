"""Finds operations and checks by the name that a playbook uses: MODULE.FUNCTION of rigwright.operations or
rigwright.checks, or PREFIX.FUNCTION of a feature."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, Literal

from rigwright.core import features, submodules

Kind = Literal["operations", "checks"]


@cache
def find(kind: Kind, name: str) -> Callable[..., Any] | None:
    """The function that is declared as operation (or check) of this name, else None. Imports only its own module."""
    module_name, _, function_name = name.partition(".")
    package = importlib.import_module(f"rigwright.{kind}")
    if submodules.load(package.__name__, module_name):
        module = importlib.import_module(f"{package.__name__}.{module_name}")
    else:
        module = features.part(features.with_prefix(module_name), kind)
    if module is None or not package.declared(name):
        return None
    return getattr(module, function_name)  # type: ignore[no-any-return]


def known(kind: Kind) -> dict[str, Callable[..., Any]]:
    """Every operation (or check) by name, in the order of modules and of definition."""
    functions: dict[str, Callable[..., Any]] = {}
    for prefix, module in _modules(kind):
        names = [f"{prefix}.{name}" for name in vars(module)]
        functions.update({name: function for name in names if (function := find(kind, name)) is not None})
    return functions


def _modules(kind: Kind) -> Iterator[tuple[str, ModuleType]]:
    """Every module of operations (or checks), with the prefix of its names."""
    package = importlib.import_module(f"rigwright.{kind}")
    for module_info in pkgutil.iter_modules(package.__path__):
        yield module_info.name, importlib.import_module(f"{package.__name__}.{module_info.name}")
    for module in features.parts(kind):
        yield features.prefix(module.__name__.rpartition(".")[0]), module
