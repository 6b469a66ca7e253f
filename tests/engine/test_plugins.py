"""Operations and checks are found by name and declare the properties that the engine reads."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

from rigwright import operations
from rigwright.engine import plugins


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("operations", "apt.install"),
        ("operations", "file.differing"),
        ("operations", "apt"),
        ("operations", "apt."),
        ("operations", "_limit_ranges.require_supported"),
        ("operations", "no_such.operation"),
        ("operations", "../os.path"),
        ("checks", "machine.now"),
        ("checks", "p2p.left_behind"),
        ("checks", "environment.check"),
        ("checks", "apt.clean"),
    ],
)
def test_what_is_not_declared_is_not_found(kind: plugins.Kind, name: str) -> None:
    assert plugins.find(kind, name) is None


@pytest.mark.parametrize("kind", ["operations", "checks"])
def test_nothing_lacks_its_decorator(kind: plugins.Kind) -> None:
    """Every function with the signature of an operation or check (`facts` and keyword parameters) has the decorator."""
    package = importlib.import_module(f"rigwright.{kind}")
    forgotten = []
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            first, *others = [*inspect.signature(function).parameters.values(), None]
            fits = first is not None and first.name == "facts"
            fits = fits and all(one is None or one.kind is one.KEYWORD_ONLY for one in others)
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if fits and own and plugins.find(kind, f"{info.name}.{name}") is None:
                forgotten.append(f"{info.name}.{name}")
    assert forgotten == []


def _operations(flag: str) -> set[str]:
    known = plugins.known("operations")
    return {name for name in known if getattr(operations.declared(name), flag)}


def test_what_operations_declare() -> None:
    """A change of only a pin or a hold does not repeat the peer-to-peer test."""
    assert _operations("reboots") == {"gpu.ecc", "gpu.mig", "reboot.if_needed", "rollback.rebooted"}
    assert _operations("sets_limits") == {"limits.applied"}
    assert _operations("affects_p2p") == {
        "driver.installed",
        "driver.reloaded",
        "fabric.running",
        "grub.cmdline",
        "kernel.headers_installed",
        "kernel.modules_blocked",
        "reboot.if_needed",
        "rollback.boot_files",
        "rollback.module_built",
        "rollback.rebooted",
        "rollback.package_versions",
    }
    assert _operations("affects_gpus") == {
        "driver.installed",
        "driver.reloaded",
        "rollback.module_built",
        "rollback.package_versions",
    }
