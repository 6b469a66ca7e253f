"""Imports paramiko without importlib.metadata, which imports email and zipfile: a twentieth of the processor time of a short command.

paramiko asks it for nothing but its own version, which is in the name of the folder beside it. Import `paramiko` from this module first; where
that folder has another name, paramiko is imported as usual.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from rigwright.core import lean_invoke as _lean_invoke  # noqa: F401  # paramiko and Fabric import Invoke

_METADATA = "importlib.metadata"


def _version() -> str:
    """The version of paramiko; "" where it cannot be told from the folders beside it."""
    spec = find_spec("paramiko")
    origin = spec.origin if spec else None
    beside = sorted(Path(origin).parent.parent.glob("paramiko-*.dist-info")) if origin else []
    return beside[0].name.removeprefix("paramiko-").removesuffix(".dist-info") if len(beside) == 1 else ""


def _import() -> None:
    if "paramiko" in sys.modules or _METADATA in sys.modules or not (version := _version()):
        return
    stand_in: Any = ModuleType(_METADATA)
    stand_in.version = lambda _name: version
    sys.modules[_METADATA] = stand_in
    importlib.metadata = stand_in
    try:
        import paramiko  # noqa: F401
    finally:
        if sys.modules.get(_METADATA) is stand_in:
            del sys.modules[_METADATA]
        if vars(importlib).get("metadata") is stand_in:
            del importlib.metadata


_import()

import paramiko  # noqa: E402

__all__ = ["paramiko"]
