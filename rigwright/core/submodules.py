"""Imports a module of a package by a name that stands in a playbook or in a document."""

from __future__ import annotations

import importlib
import importlib.util
import sys


def load(package: str, module: str) -> bool:
    """Imports PACKAGE.MODULE. Returns False, and imports nothing, if `module` is not the name of a module of that package."""
    if f"{package}.{module}" in sys.modules:
        return True
    if not module.isidentifier() or importlib.util.find_spec(f"{package}.{module}") is None:
        return False
    importlib.import_module(f"{package}.{module}")
    return True
