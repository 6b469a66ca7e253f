"""Reads playbooks and binds them to hosts: steps and checks with their parameters, checked before any connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from rigwright import checks, operations
from rigwright.checks import Finding
from rigwright.core import secrets
from rigwright.core.change import Change, Note
from rigwright.core.desired import Desired
from rigwright.core.errors import InputError, RigwrightError, UsageError
from rigwright.core.files import shipped_files
from rigwright.core.templates import host_files
from rigwright.core.templates.variables import Template, fill
from rigwright.core.yaml_source import (
    Mapping as YamlMapping,
    Sequence as YamlSequence,
    did_you_mean,
    loads,
    only_keys,
    text,
)
from rigwright.engine import parameters, plugins
from rigwright.engine.host_variables import HostVariables, of_host
from rigwright.inventory.host_patterns import NO_MATCH
from rigwright.inventory.model import BECOME, CONNECTION, Host, Inventory

_TASK_KEYS = ("name", "when", "loop", "tags", "vars")


class Step(Struct, frozen=True):
    """An operation with its parameters for one host. `skipped`: why it does not apply, "" if it does."""

    name: str
    operation: str
    function: Callable[..., Iterator[Change | Note]]
    parameters: Mapping[str, Any]
    where: str
    skipped: str = ""

    @property
    def key(self) -> str:
        """Identifies the step on its host: two steps may have the same name, and those of a loop the same line."""
        return f"{self.where} {self.name}"

    @property
    def declared(self) -> operations.Declaration:
        """The declaration of its operation."""
        return operations.declared(self.operation) or operations.Declaration()


class Check(Struct, frozen=True):
    """A check with its parameters for one host."""

    name: str
    check: str
    function: Callable[..., Iterator[Finding]]
    parameters: Mapping[str, Any]
    where: str

    @property
    def declared(self) -> checks.Declaration:
        """The declaration of its check."""
        return checks.declared(self.check) or checks.Declaration()


class BoundPlaybook(Struct, frozen=True):
    """The steps and checks of a playbook for one host, in order.

    `tags`: all tags of its plays. `desired`: the host's variables of rigwright. `partial`: tags were given, which leave
    out the steps and checks without them. `templates`: for the host's files.
    """

    host: Host
    steps: tuple[Step, ...]
    checks: tuple[Check, ...]
    tags: frozenset[str] = frozenset()
    desired: Desired = field(default_factory=Desired)
    partial: bool = False
    templates: host_files.Templates = host_files.SHIPPED


_IMPORT = "import_playbook"


def read(path: Path, importers: tuple[Path, ...] = ()) -> Iterator[YamlMapping]:
    """The plays of a playbook file and of the playbooks that it imports. `importers`: the files that import this one.

    Raises InputError for unknown or missing keys, and for an import of a file that is not there or imports itself.
    """
    for play in _plays(text(path, str(path)), str(path)):
        if _IMPORT not in play:
            yield play
            continue
        imported, where = path.parent / play[_IMPORT], play.where(_IMPORT)
        chain = (*importers, path)
        if imported.resolve() in [each.resolve() for each in chain]:
            raise InputError(where, f"{play[_IMPORT]} imports itself", "a playbook that does not import this one")
        if not imported.is_file():
            raise InputError(where, f"{imported} is not there", f"a playbook, relative to {path.parent}")
        yield from read(imported, chain)


def files(path: Path) -> Iterator[Path]:
    """A playbook file that was read before, and those that it imports."""
    yield path
    for play in _plays(text(path, str(path)), str(path)):
        if _IMPORT in play:
            yield from files(path.parent / play[_IMPORT])


@lru_cache(maxsize=8)
def _plays(written: str, path: str) -> YamlSequence:
    """The plays of a text; parsed once for all hosts, so callers must not change them."""
    plays = loads(written, path)
    if not isinstance(plays, YamlSequence) or not plays:
        raise InputError(path, "no list of plays", "- name: ...\n            hosts: ...\n            tasks: [...]")
    for number, play in enumerate(plays):
        if not isinstance(play, YamlMapping):
            raise InputError(plays.where(number), "a play that is no mapping", "name, hosts, tasks")
        if _IMPORT in play:
            only_keys(play, (_IMPORT,), f"key beside {_IMPORT}")
            if not isinstance(play[_IMPORT], str) or not play[_IMPORT]:
                raise InputError(play.where(_IMPORT), f"{_IMPORT} is {play[_IMPORT]!r}", f"{_IMPORT}: FILE.yml")
            continue
        only_keys(play, ("name", "hosts", "vars", "tasks", "checks", _IMPORT), "key of a play")
        for key in ("name", "hosts"):
            if not play.get(key):
                where = play.where(key) if key in play else plays.where(number)
                raise InputError(where, f"a play without '{key}'", f"{key}: ...")
        _require_vars(play)
    return plays


def _require_vars(holder: YamlMapping) -> None:
    if not isinstance(holder.get("vars") or {}, dict):
        raise InputError(holder.where("vars"), f"'vars' is {holder['vars']!r}", "{NAME: VALUE, ...}")


def bind(
    path: Path, inventory: Inventory, host: Host, tags: frozenset[str] = frozenset(), *, checks_only: bool = False
) -> BoundPlaybook:
    """The steps and checks of all plays for this host; no steps with `checks_only`. Raises InputError."""
    variables = of_host(host, inventory.rigs)
    beside = path.parent.parent / "templates"
    shipped = shipped_files.folder("templates")
    folders = (inventory.templates, beside if beside.is_dir() else shipped)
    owners = host_files.owners(tuple(folder for folder in folders if folder.resolve() != shipped.resolve()))
    binder = _Binder(tags, folders, {"templates": owners} if owners.own else {})
    steps: list[Step] = []
    checks: list[Check] = []
    known_tags: set[str] = set()
    for play in read(path):
        if not _is_for(play, inventory, host):
            continue
        of_play = variables.with_vars(play.get("vars"), play.where("name"))
        tasks, questions = _tasks(play, "tasks"), _tasks(play, "checks")
        for task in (*tasks, *questions):
            known_tags |= _tags(task)
        for task in () if checks_only else tasks:
            steps += [Step(*bound) for bound in binder.bind(task, of_play, "operations")]
        for task in questions:
            checks += [Check(*bound[:-1]) for bound in binder.bind(task, of_play, "checks") if not bound[-1]]
    return BoundPlaybook(
        host, tuple(steps), tuple(checks), frozenset(known_tags), variables.desired, bool(tags), owners
    )


class _EqualHosts:
    """The bindings of a playbook to the hosts of a run. Hosts that differ only in variables that the playbook does not
    read get the same steps and checks, which nothing changes."""

    def __init__(self, path: Path, inventory: Inventory, tags: frozenset[str]) -> None:
        self._path, self._inventory, self._tags = path, inventory, tags
        self._bound: dict[tuple[object, ...], BoundPlaybook] = {}
        try:
            plays = list(read(path))
        except InputError:  # `bind` raises it for each host
            plays = []
        written = repr(plays)
        self._unread = frozenset(name for name in _OF_ONE_HOST if name not in written)
        self._members = [self._hosts(_pattern(play)) for play in plays]

    def _hosts(self, pattern: str) -> frozenset[str]:
        try:
            return frozenset(self._inventory.names(pattern))
        except UsageError:  # `bind` raises it for each host
            return frozenset()

    def bind(self, host: Host, checks_only: bool) -> BoundPlaybook:
        """As the function `bind`."""
        variables = {name: value for name, value in host.variables.items() if name not in self._unread}
        if host.closed or secrets.holds(variables):
            return bind(self._path, self._inventory, host, self._tags, checks_only=checks_only)
        plays = tuple(host.name in members for members in self._members)
        key = (checks_only, plays, repr(variables))  # repr, because 1 and true are equal, and other types
        if known := self._bound.get(key):
            return replace(known, host=host)
        bound = bind(self._path, self._inventory, host, self._tags, checks_only=checks_only)
        functions = [*(step.function for step in bound.steps), *(check.function for check in bound.checks)]
        if not any(map(_reads_a_file, functions)):
            self._bound[key] = bound
        return bound


_OF_ONE_HOST = (*CONNECTION, *BECOME, "inventory_hostname", "inventory_hostname_short")
"""Variables that differ from host to host, and which most playbooks do not read."""


def _reads_a_file(function: Callable[..., Any]) -> bool:
    """Whether a parameter is the name of a template file, which may read any variable."""
    return any(Template in (hint, *get_args(hint)) for hint in parameters.types(function).values())


def bind_all(
    path: Path | None,
    inventory: Inventory,
    hosts: Sequence[Host],
    tags: frozenset[str],
    tolerant: bool,
    checks_only: frozenset[str],
) -> tuple[list[BoundPlaybook], dict[str, RigwrightError]]:
    """Binds a playbook to each host; returns the bound playbooks, and the errors by host name.

    Raises InputError for a mistake of any host; with `tolerant` it is that host's error. `checks_only`: hosts that get
    no steps.
    """
    bound = [BoundPlaybook(host, (), ()) for host in hosts]
    refused: dict[str, RigwrightError] = {}
    if path is None:
        return bound, refused
    if not path.is_file():
        shipped = sorted(file.stem for file in shipped_files.folder("playbooks").glob("*.yml"))
        problem, expected = (
            f"{path} is not there{did_you_mean(str(path), shipped)}",
            f"a playbook file, or one of {', '.join(shipped)}",
        )
        raise UsageError(
            "--playbook", problem, expected, "--playbook FILE, or leave it out for the one that rigwright brings"
        )
    equal = _EqualHosts(path, inventory, tags)
    for number, host in enumerate(hosts):
        try:
            bound[number] = equal.bind(host, host.name in checks_only)
        except InputError as error:
            if not tolerant:
                raise
            refused[host.name] = error
    if tags or not tolerant:
        _require_steps(bound, path, tags)
    return bound, refused


def _require_steps(bound: Sequence[BoundPlaybook], path: Path, tags: frozenset[str]) -> None:
    """Raises UsageError for a tag that the playbook does not have, and when no host has a step or check."""
    known = {tag for playbook in bound for tag in playbook.tags}
    for tag in sorted(tags - known):
        problem = f"no step of {path} has the tag '{tag}'{did_you_mean(tag, known)}"
        expected = f"one of {', '.join(sorted(known))}" if known else "no --tags: the playbook has no tag"
        raise UsageError("--tags", problem, expected, "leave --tags out for all steps")
    if any(playbook.steps or playbook.checks for playbook in bound):
        return
    if tags:
        problem = f"no step of {path} has the tag {', '.join(sorted(tags))}"
        raise UsageError("--tags", problem, "a tag of a step for these hosts", "leave --tags out for all steps")
    names = ", ".join(playbook.host.name for playbook in bound)
    fix = "another --host or --playbook; or correct `hosts:` in a playbook of your own"
    raise UsageError("--host", f"no play of {path} is for {names}", "a host that a play's `hosts:` names", fix)


def _pattern(play: YamlMapping) -> str:
    """The pattern of the hosts that a play is for."""
    hosts = play["hosts"]
    return ":".join(map(str, hosts)) if isinstance(hosts, list) else str(hosts)


def _is_for(play: YamlMapping, inventory: Inventory, host: Host) -> bool:
    """Whether a play is for a host. Raises InputError if `hosts:` names neither a host nor a group of the inventory."""
    try:
        return host.name in inventory.names(_pattern(play))
    except UsageError as error:
        if error.found == NO_MATCH:
            return False
        expected = f"hosts and groups of the inventory {inventory.path}, or `all`"
        group = play["hosts"] if isinstance(play["hosts"], str) and play["hosts"].isidentifier() else "GROUP"
        entry = f"`{group}: {{hosts: {{{host.name}: }}}}` in the inventory (docs/reference/inventory.md)"
        fix = f"put {host.name} into that group: {entry}; or change `hosts:` in a playbook of your own"
        raise InputError(play.where("hosts"), error.found, expected, fix) from None


def _tasks(play: YamlMapping, key: str) -> list[YamlMapping]:
    """The entries under `tasks` or `checks` of a play. Raises InputError."""
    tasks = play.get(key) or YamlSequence()
    if not isinstance(tasks, YamlSequence):
        raise InputError(play.where(key), f"'{key}' is no list", "- name: ...")
    for number, task in enumerate(tasks):
        if not isinstance(task, YamlMapping):
            raise InputError(tasks.where(number), "a task that is no mapping", "name and one operation")
    return list(tasks)


_BoundTask = tuple[str, str, Callable[..., Any], Mapping[str, Any], str, str]
"""A task for one host, or one repetition of its loop: the fields of Step."""


class _Binder(Struct, frozen=True):
    """Binds tasks with one of the `tags`; all tasks if there are none.

    `folders` contain templates, `others` are values of parameters that no task can give.
    """

    tags: frozenset[str]
    folders: Sequence[Path]
    others: Mapping[str, Any]

    def bind(self, task: YamlMapping, outer: HostVariables, kind: plugins.Kind) -> Iterator[_BoundTask]:
        """The task, once for each item of its loop; nothing if its tags exclude it. Raises InputError."""
        plugin, function = _plugin(task, kind)
        where, given = task.where(plugin), task[plugin]
        if self.tags and not _tags(task) & (self.tags | {"always"}):
            return
        _require_vars(task)
        parameters.check(plugin, function, given, where)
        host = outer.with_vars(task.get("vars"), where)
        for variables in _repetitions(task, host.variables):
            name = str(fill(task.get("name", plugin), variables, task.where()))
            skipped = _skip_reason(task, variables)
            values: dict[str, Any] = {}
            if not skipped:
                values = parameters.bind(plugin, function, given, variables, host, where, self.folders, self.others)
            yield name, plugin, function, values, where, skipped


def _plugin(task: YamlMapping, kind: plugins.Kind) -> tuple[str, Callable[..., Any]]:
    """The name and function of the operation (or check) of a task. Raises InputError unless there is exactly one."""
    names = [key for key in task if key not in _TASK_KEYS]
    singular = kind.removesuffix("s")
    unknown_key = next((name for name in names if "." not in name), "")
    if unknown_key and len(names) > 1:
        problem = f"unknown key of a task '{unknown_key}'{did_you_mean(unknown_key, _TASK_KEYS)}"
        raise InputError(task.where(unknown_key), problem, f"one operation, and {', '.join(_TASK_KEYS)}")
    if len(names) != 1:
        article = "an" if kind == "operations" else "a"
        problem = f"{kind} {', '.join(names)}" if names else f"a task without {article} {singular}"
        raise InputError(task.where(), problem, f"one {singular} a task, such as {next(iter(plugins.known(kind)))}")
    name = names[0]
    function = plugins.find(kind, name)
    if function is None:
        known = plugins.known(kind)
        module = name.split(".")[0]
        same = [other for other in known if other.split(".")[0] == module]
        modules = dict.fromkeys(other.split(".")[0] for other in known)
        problem = f"unknown {singular} '{name}'{did_you_mean(name, [*known, *_TASK_KEYS])}"
        expected = f"one of {', '.join(same)}" if same else f"one of the modules {', '.join(modules)}"
        raise InputError(task.where(name), problem, expected, f"docs/reference/{kind}.md lists all")
    return name, function


def _repetitions(task: YamlMapping, variables: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The variables of each repetition of a task, with `item` if it has a loop. Raises InputError."""
    if "loop" not in task:
        yield variables
        return
    items = fill(task["loop"], variables, task.where("loop"))
    if isinstance(items, secrets.Secret):
        items = secrets.sealed(items.value)
    if not isinstance(items, (list, tuple)):
        raise InputError(task.where("loop"), f"'loop' is {items!r}", "a list")
    for item in items:
        yield {**variables, "item": item}


def _tags(task: YamlMapping) -> set[str]:
    tags = task.get("tags") or []
    if not isinstance(tags, (str, list)) or not all(isinstance(tag, str) for tag in tags):
        raise InputError(task.where("tags"), f"'tags' is {tags!r}", "a name, or a list of names")
    return {tags} if isinstance(tags, str) else set(tags)


def _skip_reason(task: YamlMapping, variables: Mapping[str, Any]) -> str:
    """The first condition of `when` that is false, or empty. Raises InputError."""
    conditions = task.get("when", True)
    for condition in conditions if isinstance(conditions, list) else [conditions]:
        if not isinstance(condition, (str, bool)):
            raise InputError(task.where("when"), f"'when' is {condition!r}", "an expression")
        if isinstance(condition, str):
            from rigwright.core.templates.rendering import evaluate  # imports jinja2

            applies = evaluate(condition, variables, task.where("when"))
        else:
            applies = condition
        if not applies:
            return f"when: {condition}"
    return ""
