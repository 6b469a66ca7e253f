"""Playbooks: YAML to bound steps. Every name, parameter, variable and template is checked before any connection."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from rigwright.change import Change, Note
from rigwright.checks import GIVEN, Finding
from rigwright.errors import InputError, UsageError
from rigwright.hosts import NO_MATCH, Host, Inventory
from rigwright.templates import FOLDER, Template, evaluate, fill, render, settled
from rigwright.variables import of_host, parameter
from rigwright.yamlfile import Mapping as YamlMapping
from rigwright.yamlfile import Sequence as YamlSequence
from rigwright.yamlfile import did_you_mean, loads, only_keys, text

_TASK_KEYS = ("name", "when", "loop", "tags", "vars")


@dataclass(frozen=True)
class Step:
    """One operation with its parameters, for one host. `skipped` says why it does not apply, or is empty."""

    name: str
    operation: str
    function: Callable[..., Iterator[Change | Note]] = field(compare=False, repr=False)
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
    return _plays(text(path, str(path)), str(path))


@lru_cache(maxsize=8)
def _plays(written: str, path: str) -> YamlSequence:
    """Read once for all hosts, which share what it returns and change nothing of it."""
    plays = loads(written, path)
    if not isinstance(plays, YamlSequence) or not plays:
        raise InputError(path, "no list of plays", "- name: ...\n            hosts: ...\n            tasks: [...]")
    for number, play in enumerate(plays):
        if not isinstance(play, YamlMapping):
            raise InputError(plays.where(number), "a play that is no mapping", "name, hosts, tasks")
        only_keys(play, ("name", "hosts", "vars", "tasks", "checks"), "key of a play")
        for key in ("name", "hosts"):
            if not play.get(key):
                where = play.where(key) if key in play else plays.where(number)
                raise InputError(where, f"a play without '{key}'", f"{key}: ...")
        if not isinstance(play.get("vars") or {}, dict):
            raise InputError(play.where("vars"), f"'vars' is {play['vars']!r}", "{NAME: VALUE, ...}")
    return plays


def bind(
    path: Path, inventory: Inventory, host: Host, tags: frozenset[str] = frozenset(), *, checks_only: bool = False
) -> Bound:
    """The steps and checks of every play that is for this host. Raises InputError, before anything is connected to."""
    rigs = inventory.rigs
    variables = of_host(host, rigs)
    folder = path.parent.parent / "templates"
    steps: list[Step] = []
    checks: list[Check] = []
    known: set[str] = set()
    for play in read(path):
        if not _meant(play, inventory, host):
            continue
        play_variables = {**variables, **(play.get("vars") or {})}
        play_variables = settled(play_variables, play.where("name"), host.origins)
        for task in [*_tasks(play, "tasks"), *_tasks(play, "checks")]:
            known |= _tags(task)
        for task in () if checks_only else _tasks(play, "tasks"):
            for found in _bind_task(
                task, play_variables, tags, folder if folder.is_dir() else FOLDER, "operations", rigs
            ):
                steps.append(Step(*found))
        for task in _tasks(play, "checks"):
            for name, operation, function, parameters, where, skipped in _bind_task(
                task, play_variables, tags, FOLDER, "checks", rigs
            ):
                if not skipped:
                    checks.append(Check(name, operation, function, parameters, where))
    return Bound(host, tuple(steps), tuple(checks), frozenset(known))


def _meant(play: YamlMapping, inventory: Inventory, host: Host) -> bool:
    """Whether a play is for a host. Raises InputError when its `hosts:` names what the inventory does not have."""
    try:
        hosts = play["hosts"]
        return host.name in inventory.names(":".join(map(str, hosts)) if isinstance(hosts, list) else str(hosts))
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


_Found = tuple[str, str, Callable[..., Any], Mapping[str, Any], str, str]


def _bind_task(
    task: YamlMapping, outer: dict[str, Any], tags: frozenset[str], folder: Path, kind: str, rigs: Path
) -> Iterator[_Found]:
    names = [key for key in task if key not in _TASK_KEYS]
    one = kind.removesuffix("s")
    odd = next((name for name in names if "." not in name), "")
    if odd and len(names) > 1:
        found = f"unknown key of a task '{odd}'{did_you_mean(odd, _TASK_KEYS)}"
        raise InputError(task.where(odd), found, f"one operation, and {', '.join(_TASK_KEYS)}")
    if len(names) != 1:
        known = _known(kind)
        found = f"operations {', '.join(names)}" if names else f"a task without {'an' if one[0] == 'o' else 'a'} {one}"
        raise InputError(task.where(), found, f"one {one} a task, such as {next(iter(known))}")
    operation = names[0]
    where = task.where(operation)
    function = _in_module(kind, *operation.split(".", 1)) if "." in operation else None
    if function is None:
        known = _known(kind)
        same = [name for name in known if name.split(".")[0] == operation.split(".")[0]]
        raise InputError(
            where,
            f"unknown {one} '{operation}'{did_you_mean(operation, [*known, *_TASK_KEYS])}",
            f"one of {', '.join(same)}"
            if same
            else f"one of the modules {', '.join(dict.fromkeys(n.split('.')[0] for n in known))}",
            f"docs/{kind}.md has them all",
        )
    if tags and not _tags(task) & (tags | {"always"}):
        return
    if not isinstance(task.get("vars") or {}, dict):
        raise InputError(task.where("vars"), f"'vars' is {task['vars']!r}", "{NAME: VALUE, ...}")
    _check_parameters(operation, function, task[operation], where)
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
        parameters = {} if skipped else _parameters(operation, function, given, inner, where, folder, rigs)
        yield label, operation, function, parameters, where, skipped


def _tags(task: YamlMapping) -> set[str]:
    tags = task.get("tags") or []
    if not isinstance(tags, (str, list)) or not all(isinstance(tag, str) for tag in tags):
        raise InputError(task.where("tags"), f"'tags' is {tags!r}", "a name, or a list of names")
    return {tags} if isinstance(tags, str) else set(tags)


def _not_now(task: YamlMapping, variables: Mapping[str, Any]) -> str:
    """Why a task does not apply, or nothing."""
    conditions = task.get("when", True)
    for condition in conditions if isinstance(conditions, list) else [conditions]:
        if not isinstance(condition, (str, bool)):
            raise InputError(task.where("when"), f"'when' is {condition!r}", "an expression")
        if not (condition if isinstance(condition, bool) else evaluate(condition, variables, task.where("when"))):
            return f"when: {condition}"
    return ""


def _check_parameters(operation: str, function: Callable[..., Any], given: Any, where: str) -> None:
    """Raises InputError for parameters that are none, or that the operation does not have, whether it applies or not."""
    if given is not None and not isinstance(given, Mapping):
        raise InputError(where, f"the parameters of {operation} are {given!r}", "{NAME: VALUE, ...}")
    if isinstance(given, YamlMapping) and given:
        only_keys(
            given,
            [name for name in _signature(function).parameters if name not in GIVEN],
            f"parameter of {operation}",
        )


def _parameters(
    operation: str,
    function: Callable[..., Any],
    given: Any,
    variables: Mapping[str, Any],
    where: str,
    folder: Path,
    rigs: Path,
) -> dict[str, Any]:
    given = YamlMapping() if given is None else given
    hints = _hints(function)
    known = {name: item for name, item in _signature(function).parameters.items() if name != "facts"}
    found: dict[str, Any] = {}
    for name, value in given.items():
        at = given.where(name) if isinstance(given, YamlMapping) else where
        filled = parameter(fill(value, variables, at), hints[name], at, name, rigs)
        if hints[name] is Template and not (folder / filled).is_file():
            known_ones = sorted(file.name for file in folder.glob("*.j2"))
            wrong = f"no such template '{filled}'{did_you_mean(filled, known_ones)}"
            raise InputError(
                at, wrong, f"one of {', '.join(known_ones)}" if known_ones else f"one of the files in {folder}"
            )
        found[name] = Template(render(filled, variables, folder)) if hints[name] is Template else filled
    for name, item in known.items():
        if name not in found and item.default is inspect.Parameter.empty:
            raise InputError(where, f"{operation} lacks '{name}'", f"{name}: ...")
    return found


_hints = cache(get_type_hints)
_signature = cache(inspect.signature)


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


@cache
def _in_module(kind: str, module_name: str, name: str) -> Callable[..., Any] | None:
    """The operation (or check) of a module, or None when there is none of that name; other modules are not loaded."""
    if not module_name.isidentifier() or importlib.util.find_spec(f"rigwright.{kind}.{module_name}") is None:
        return None
    module = importlib.import_module(f"rigwright.{kind}.{module_name}")
    function = getattr(module, name, None)
    if not inspect.isfunction(function) or function.__module__ != module.__name__ or name.startswith("_"):
        return None
    parameters = list(_signature(function).parameters.values())
    fits = parameters and parameters[0].name == "facts" and all(p.kind is p.KEYWORD_ONLY for p in parameters[1:])
    return function if fits else None
