"""Finds the features and what each brings, by name: rigwright's own, and those of other installed distributions.

A feature is a package. Its `__init__` may say what the rest of the tool must know before it loads anything else of it:

COMMANDS      its commands, by name the class of their options: {"stress": "options:StressOptions"}
PREFIX        the prefix of its operations and checks in playbooks (default: its name)
RESULT_KEYS   the keys that its results have in the JSON document of a host
VARIABLES     the variables of the inventory that it declares in variables.TYPES

Modules that the rest of the tool looks for: operations.py, checks.py, variables.py; page.py of a command with a page of
its own, with page(document, reload_s); history.py, with show(console, host), changes(past, machine, since), or both;
result.py, with read(host), which makes a result from the part of a document about a host. The folder host/ has the
programs of the feature that run on hosts.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rigwright.core import submodules
from rigwright.core.files import shipped_files

PACKAGE = "rigwright.features"
ENTRY_POINTS = "rigwright.features"


@cache
def features() -> dict[str, ModuleType]:
    """The package of each feature by its name: rigwright's own whose folder is there, then those of other
    distributions."""
    names = importlib.import_module(PACKAGE).NAMES
    own = {name: sys.modules[f"{PACKAGE}.{name}"] for name in names if submodules.load(PACKAGE, name)}
    return {**own, **_of_other_distributions()}


def _of_other_distributions() -> dict[str, ModuleType]:
    """The features of other distributions, which name them as entry points."""
    group = f"[{ENTRY_POINTS}]"
    files = (file for path in sys.path if path for file in Path(path).glob("*.dist-info/entry_points.txt"))
    if not any(group in file.read_text(encoding="utf-8", errors="replace") for file in files):
        return {}
    from importlib import metadata  # not loaded otherwise: docs/develop/speed.md

    return {point.name: point.load() for point in metadata.entry_points(group=ENTRY_POINTS)}


def part(feature: str, module: str) -> Any:
    """A module of a feature; None if the feature is not there, or has no such module."""
    package = features().get(feature)
    if package is None or not submodules.load(package.__name__, module):
        return None
    return sys.modules[f"{package.__name__}.{module}"]


def parts(module: str) -> Iterator[Any]:
    """This module of every feature that has it."""
    return (found for name in features() if (found := part(name, module)))


def functions(module: str, name: str) -> Iterator[Any]:
    """This function of this module of every feature that has it."""
    return (function for each in parts(module) if (function := getattr(each, name, None)))


@cache
def host_programs() -> dict[str, Path]:
    """The path of each program that runs on hosts, by its file name: those of onhost/ and of the features' host/."""
    folders = [Path(folder) / "host" for package in features().values() for folder in package.__path__]
    return {path.name: path for folder in (shipped_files.folder("onhost"), *folders) for path in folder.glob("*.py")}


def prefix(package: str) -> str:
    """The prefix of the operations and checks of a feature's package."""
    return str(getattr(sys.modules[package], "PREFIX", package.rpartition(".")[2]))


def with_prefix(wanted: str) -> str:
    """The name of the feature whose operations and checks have this prefix; "" if there is none."""
    return next((name for name, package in features().items() if prefix(package.__name__) == wanted), "")


def result_keys() -> tuple[str, ...]:
    """The keys of the results of all features in the JSON document of a host."""
    return tuple(key for package in features().values() for key in getattr(package, "RESULT_KEYS", ()))


@cache
def variables() -> dict[str, str]:
    """The feature of each variable of the inventory that a feature declares."""
    return {variable: name for name, package in features().items() for variable in getattr(package, "VARIABLES", ())}


def commands() -> dict[str, str]:
    """The class of the options of each command of a feature, MODULE:CLASS, by the name of the command."""
    return {
        command: f"{package.__name__}.{place}"
        for package in features().values()
        for command, place in getattr(package, "COMMANDS", {}).items()
    }
