"""Imports Invoke without modules that no command needs: a third of the processor time that a command takes to start.

Invoke imports unittest.mock (and with it asyncio) for its MockContext, and its own copy of PyYAML. Import this module before Invoke.
unittest.mock can be imported afterwards as usual; where Invoke reads a YAML file, PyYAML does it.
"""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import Any


class _Yaml(ModuleType):
    """PyYAML, imported when it is used."""

    def __getattr__(self, name: str) -> Any:
        import yaml

        return getattr(yaml, name)


def _import() -> None:
    if "invoke" in sys.modules or "unittest" in sys.modules:
        return
    package, mock = ModuleType("unittest"), ModuleType("unittest.mock")
    package.__path__ = []
    mock.Mock = object  # type: ignore[attr-defined]
    sys.modules.update({"unittest": package, "unittest.mock": mock})
    sys.modules["invoke.vendor.yaml"] = _Yaml("invoke.vendor.yaml")
    collects = gc.isenabled()
    gc.disable()  # modules stay loaded
    try:
        import invoke.main  # noqa: F401
    finally:
        if collects:
            gc.enable()
        for module in (package, mock):
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]


_import()
