"""Playbooks: YAML to bound steps. Every name, parameter, variable and template is checked before any connection."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from rigwright import catalogue
from rigwright.change import Change
from rigwright.checks import Finding
from rigwright.errors import InputError, UsageError
from rigwright.inventory import NO_MATCH, Host, Inventory
from rigwright.templates import FOLDER, Template, evaluate, fill, render, settled
from rigwright.wanted import VARIABLES, convert
from rigwright.yamlfile import Mapping as YamlMapping
from rigwright.yamlfile import Sequence as YamlSequence
from rigwright.yamlfile import did_you_mean, load, only_keys

_TASK_KEYS = ("name", "when", "loop", "tags", "vars")


@dataclass(frozen=True)
class Step:
    """One operation with its parameters, for one host. `skipped` says why it does not apply, or is empty."""

    name: str
    operation: str
    function: Callable[..., Iterator[Change]] = field(compare=False, repr=False)
    parameters: Mapping[str, Any]
    where: str
    skipped: str = ""

    @property
    def key(self) -> str:
        """What tells a step from every other of its host: two may share a name, a loop's steps share a line."""
        return f"{self.where} {self.name}"


@dataclass(frozen=True)
class Check:
    """One check with its parameters, for one host."""

    name: str
    check: str
    function: Callable[..., Iterator[Finding]] = field(compare=False, repr=False)
    parameters: Mapping[str, Any]
    where: str


@dataclass(frozen=True)
class Bound:
    """What is to be so on one host: the steps in order, then the checks."""

    host: Host
    steps: tuple[Step, ...]
    checks: tuple[Check, ...]
    tags: frozenset[str] = frozenset()


def read(path: Path) -> YamlSequence:
    """The plays of a playbook file, their keys checked. Raises InputError."""
    plays = load(path)
    if not isinstance(plays, YamlSequence) or not plays:
        raise InputError(str(path), "no list of plays", "- name: ...\n            hosts: ...\n            tasks: [...]")
    for number, play in enumerate(plays):
        if not isinstance(play, YamlMapping):
            raise InputError(plays.where(number), "a play that is no mapping", "name, hosts, tasks")
        only_keys(play, ("name", "hosts", "vars", "tasks", "checks"), "key of a play")
        for key in ("name", "hosts"):
            if key not in play:
                raise InputError(plays.where(number), f"a play without '{key}'", f"{key}: ...")
    return plays


def bind(path: Path, inventory: Inventory, host: Host, tags: frozenset[str] = frozenset()) -> Bound:
    """The steps and checks of every play that is for this host. Raises InputError, before anything is connected to."""
    variables = _variables(host)
    folder = path.parent.parent / "templates"
    steps: list[Step] = []
    checks: list[Check] = []
    known: set[str] = set()
    for play in read(path):
        if not _meant(play, inventory, host):
            continue
        play_variables = {**variables, **(play.get("vars") or {})}
        play_variables = settled(play_variables, play.where("name"))
        for task in [*_tasks(play, "tasks"), *_tasks(play, "checks")]:
            known |= _tags(task)
        for task in _tasks(play, "tasks"):
            for found in _bind_task(task, play_variables, tags, folder if folder.is_dir() else FOLDER, "operations"):
                steps.append(Step(*found))
        for task in _tasks(play, "checks"):
            for name, operation, function, parameters, where, skipped in _bind_task(
                task, play_variables, tags, FOLDER, "checks"
            ):
                if not skipped:
                    checks.append(Check(name, operation, function, parameters, where))
    return Bound(host, tuple(steps), tuple(checks), frozenset(known))


def _meant(play: YamlMapping, inventory: Inventory, host: Host) -> bool:
    """Whether a play is for a host. Raises InputError when its `hosts:` names what the inventory does not have."""
    try:
        return host in inventory.select(str(play["hosts"]))
    except UsageError as error:
        if error.found == NO_MATCH:
            return False
        raise InputError(play.where("hosts"), error.found, "a host or group of the inventory", error.todo) from None


def _tasks(play: YamlMapping, key: str) -> list[YamlMapping]:
    tasks = play.get(key) or YamlSequence()
    if not isinstance(tasks, YamlSequence):
        raise InputError(play.where(key), f"'{key}' is no list", "- name: ...")
    for number, task in enumerate(tasks):
        if not isinstance(task, YamlMapping):
            raise InputError(tasks.where(number), "a task that is no mapping", "name and one operation")
    return list(tasks)


def _variables(host: Host) -> dict[str, Any]:
    """The host's variables, rigwright's own of the right shape."""
    variables = dict(host.variables)
    for name, wanted in VARIABLES.items():
        if name in variables:
            convert(variables[name], wanted, getattr(variables[name], "path", "") or host.where, name)
    if "rig" in variables:
        variables["expected_gpus"] = len(catalogue.rig(variables["rig"], host.where).gpus)
    return variables


_Found = tuple[str, str, Callable[..., Any], Mapping[str, Any], str, str]


def _bind_task(
    task: YamlMapping, outer: dict[str, Any], tags: frozenset[str], folder: Path, kind: str
) -> Iterator[_Found]:
    names = [key for key in task if key not in _TASK_KEYS]
    one = kind.removesuffix("s")
    if len(names) != 1:
        known = _known(kind)
        found = f"operations {', '.join(names)}" if names else f"a task without {'an' if one[0] == 'o' else 'a'} {one}"
        raise InputError(task.where(), found, f"one {one} a task, such as {next(iter(known))}")
    operation = names[0]
    where = task.where(operation)
    function = _in_module(kind, *operation.split(".", 1)) if "." in operation else None
    if function is None:
        known = _known(kind)
        raise InputError(
            where,
            f"unknown {one} '{operation}'{did_you_mean(operation, [*known, *_TASK_KEYS])}",
            f"one of {', '.join(known)}",
        )
    if tags and not _tags(task) & (tags | {"always"}):
        return
    variables = settled({**outer, **(task.get("vars") or {})}, where)
    items: Any = [None]
    if "loop" in task:
        items = fill(task["loop"], variables, task.where("loop"))
        if not isinstance(items, (list, tuple)):
            raise InputError(task.where("loop"), f"'loop' is {items!r}", "a list")
    for item in items:
        inner = {**variables, "item": item} if "loop" in task else variables
        label = str(fill(task.get("name", operation), inner, task.where()))
        skipped = _not_now(task, inner)
        given = task[operation]
        parameters = {} if skipped else _parameters(operation, function, given, inner, where, folder)
        yield label, operation, function, parameters, where, skipped


def _tags(task: YamlMapping) -> set[str]:
    return {task["tags"]} if isinstance(task.get("tags"), str) else set(task.get("tags") or ())


def _not_now(task: YamlMapping, variables: Mapping[str, Any]) -> str:
    """Why a task does not apply, or nothing."""
    conditions = task.get("when", True)
    for condition in conditions if isinstance(conditions, list) else [conditions]:
        if not isinstance(condition, (str, bool)):
            raise InputError(task.where("when"), f"'when' is {condition!r}", "an expression")
        if not (condition if isinstance(condition, bool) else evaluate(condition, variables, task.where("when"))):
            return f"when: {condition}"
    return ""


def _parameters(
    operation: str, function: Callable[..., Any], given: Any, variables: Mapping[str, Any], where: str, folder: Path
) -> dict[str, Any]:
    if given is None:
        given = YamlMapping()
    if not isinstance(given, Mapping):
        raise InputError(where, f"the parameters of {operation} are {given!r}", "{NAME: VALUE, ...}")
    hints = get_type_hints(function)
    known = {name: item for name, item in inspect.signature(function).parameters.items() if name != "facts"}
    if isinstance(given, YamlMapping) and given:
        only_keys(given, known, f"parameter of {operation}")
    found: dict[str, Any] = {}
    for name, value in given.items():
        at = given.where(name) if isinstance(given, YamlMapping) else where
        filled = convert(fill(value, variables, at), hints[name], at, name)
        found[name] = Template(render(filled, variables, folder)) if hints[name] is Template else filled
    for name, item in known.items():
        if name not in found and item.default is inspect.Parameter.empty:
            raise InputError(where, f"{operation} lacks '{name}'", f"{name}: ...")
    return found


def _known(kind: str) -> dict[str, Callable[..., Any]]:
    """MODULE.FUNCTION of every operation (or check): a public function with `facts` first and keywords after."""
    package = importlib.import_module(f"rigwright.{kind}")
    found: dict[str, Callable[..., Any]] = {}
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"rigwright.{kind}.{module_info.name}")
        for name in vars(module):
            function = _in_module(kind, module_info.name, name)
            if function is not None:
                found[f"{module_info.name}.{name}"] = function
    return found


def _in_module(kind: str, module_name: str, name: str) -> Callable[..., Any] | None:
    """The operation (or check) of a module, or None when there is none of that name; other modules are not loaded."""
    if not module_name.isidentifier() or importlib.util.find_spec(f"rigwright.{kind}.{module_name}") is None:
        return None
    module = importlib.import_module(f"rigwright.{kind}.{module_name}")
    function = getattr(module, name, None)
    if not inspect.isfunction(function) or function.__module__ != module.__name__ or name.startswith("_"):
        return None
    parameters = list(inspect.signature(function).parameters.values())
    fits = parameters and parameters[0].name == "facts" and all(p.kind is p.KEYWORD_ONLY for p in parameters[1:])
    return function if fits else None
