"""Imports a module of a package by a name that stands in a playbook or in a document."""

from __future__ import annotations

import importlib
import sys


def load(package: str, module: str) -> bool:
    """Imports PACKAGE.MODULE. Returns False if that package has no such module."""
    name = f"{package}.{module}"
    if name in sys.modules:
        return True
    if not module.isidentifier():
        return False
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return False
        raise
    return True
