"""Operations and checks are found by name and declare the properties that the engine reads."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

from rigwright import checks, operations
from rigwright.engine import plugins
from rigwright.facts.nccl import nccl_tests as nccl_programs
from rigwright.features.nodes import training_facts as node_training
from rigwright.features.stress import facts as stress
from rigwright.features.training_smoke import facts as training_smoke


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("operations", "apt.install"),
        ("operations", "file.differing"),
        ("operations", "apt"),
        ("operations", "apt."),
        ("operations", "_limit_ranges.cannot"),
        ("operations", "no_such.operation"),
        ("operations", "../os.path"),
        ("checks", "machine.now"),
        ("checks", "p2p.not_run"),
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


def _checks(flag: str) -> set[str]:
    known = plugins.known("checks")
    return {name for name in known if getattr(checks.declared(name), flag)}


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


def test_what_checks_declare() -> None:
    assert _checks("active") == {"p2p.ran", "p2p.copies", "p2p.collective", "p2p.scaling", "p2p.settings"}
    assert _checks("gpu_health") == {
        "health.recovered",
        "health.memory",
        "health.not_throttled",
        "health.heat",
        "health.xids",
    }
    assert _checks("replaces") == {"p2p.settings"}
    loads = {name for name in _checks("needs") if name.startswith("load.")}
    assert loads == {
        f"load.{name}"
        for name in ("supplied", "survived", "exact", "cool", "speed", "as_model", "as_before", "copies", "counters")
    }
    needs = {name: checks.declared(name) for name in _checks("needs")}
    assert {name: found and found.needs for name, found in needs.items()} == {
        "nccl_programs.nccl_tests": nccl_programs.nccl_tests,
        **dict.fromkeys(loads, stress.measured),
        **dict.fromkeys(
            ("training_smoke.torch", "training_smoke.learned", "training_smoke.transport", "training_smoke.speed"),
            training_smoke.trained,
        ),
        **dict.fromkeys(("nodes.all_reduce", "nodes.trained", "nodes.speed"), node_training.trained),
    }
