"""The inventory: hosts and groups in Ansible's YAML format, their variables by Ansible's precedence, host patterns."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rigwright.errors import InputError, UsageError
from rigwright.shell import Secret
from rigwright.templates import settled
from rigwright.yamlfile import Mapping as YamlMapping
from rigwright.yamlfile import did_you_mean, load, only_keys

OUR_VARIABLES = ("rig", "driver", "cuda", "kernel_cmdline", "limits", "cuda_repository", "ssh_known_hosts")
NO_MATCH = "matches no host"
_RANGE = re.compile(r"\[(\w+):(\w+)(?::(\d+))?\]")


@dataclass(frozen=True)
class Host:
    """One machine: its name, the groups it is in (nearest last), its variables, and where it was named (FILE:LINE)."""

    name: str
    groups: tuple[str, ...]
    variables: Mapping[str, Any] = field(compare=False, repr=False)
    where: str = ""

    @property
    def address(self) -> str:
        """The name or address that is connected to."""
        return str(self.variables.get("ansible_host", self.name))


@dataclass
class _Group:
    variables: dict[str, Any] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Inventory:
    """All hosts of an inventory, in file order."""

    path: Path
    hosts: Mapping[str, Host]
    groups: Mapping[str, tuple[str, ...]]

    def select(self, pattern: str) -> list[Host]:
        """The hosts that a pattern names: NAME, GROUP, glob, ~regex, joined by `:` or `,`; `:&` also in, `:!` not in.

        Raises UsageError when a part names nothing, or nothing is left.
        """
        chosen: list[str] | None = None
        parts = [part.strip() for part in re.split(r"[:,](?![^\[]*\])", pattern) if part.strip()]
        order = {"!": 2, "&": 1}
        for part in sorted(parts, key=lambda text: order.get(text[0], 0)):
            names = self._matching(part.lstrip("!&"), pattern)
            if part.startswith("!"):
                chosen = [name for name in (self.hosts if chosen is None else chosen) if name not in names]
            elif part.startswith("&"):
                chosen = [name for name in (self.hosts if chosen is None else chosen) if name in names]
            else:
                chosen = (chosen or []) + [name for name in names if name not in (chosen or [])]
        if not chosen:
            raise UsageError(f"--host {pattern}", NO_MATCH, "a host, a group or a pattern", self._todo())
        return [self.hosts[name] for name in chosen]

    def only(self) -> Host:
        """The one host of an inventory that has one. Raises UsageError otherwise."""
        if len(self.hosts) != 1:
            raise UsageError(
                "--host",
                f"is missing, and {self.path} has {len(self.hosts)} hosts",
                "which ones are meant",
                self._todo(),
            )
        return next(iter(self.hosts.values()))

    def _matching(self, part: str, pattern: str) -> list[str]:
        if part.startswith("~"):
            try:
                found = re.compile(part[1:])
            except re.error as error:
                raise UsageError(f"--host {pattern}", f"'{part[1:]}' is no regular expression: {error}") from None
            return [
                name for name, host in self.hosts.items() if any(found.match(word) for word in (name, *host.groups))
            ]
        names = [
            name
            for name, host in self.hosts.items()
            if any(fnmatch.fnmatchcase(word, part) for word in (name, *host.groups))
        ]
        if not names and part not in self.groups:
            known = [*self.hosts, *self.groups]
            raise UsageError(
                f"--host {pattern}", f"no host or group '{part}'{did_you_mean(part, known)}", "", self._todo()
            )
        return names

    def _todo(self) -> str:
        names = list(self.hosts)
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        return f"{self.path} has: {shown or 'no hosts'}; `all` means every one"


def read(path: Path) -> Inventory:
    """The inventory in a file or directory (`hosts.yml`, `group_vars/`, `host_vars/`). Raises InputError."""
    files = [path] if path.is_file() else sorted({*path.glob("*.yml"), *path.glob("*.yaml")}) if path.is_dir() else []
    if not files:
        raise InputError(
            str(path),
            "no inventory there",
            "a file, or a directory with hosts.yml",
            "name one with --inventory PATH or RIGWRIGHT_INVENTORY",
        )
    groups: dict[str, _Group] = {"all": _Group(), "ungrouped": _Group()}
    host_variables: dict[str, dict[str, Any]] = {}
    host_where: dict[str, str] = {}
    for file in files:
        _read_file(file, groups, host_variables, host_where)
    folder = path if path.is_dir() else path.parent
    parents = _parents(groups)
    hosts: dict[str, Host] = {}
    for name, where in host_where.items():
        mine = _groups_of(name, groups, parents)
        variables: dict[str, Any] = {}
        for group in mine:
            variables.update(groups[group].variables)
        for group in mine:
            variables.update(_vars_files(folder / "group_vars", group))
        variables.update(host_variables[name])
        variables.update(_vars_files(folder / "host_vars", name))
        variables["inventory_hostname"] = name
        variables["group_names"] = [group for group in mine if group != "all"]
        hosts[name] = Host(name, tuple(mine), _connection(settled(variables, where), where), where)
    members = {group: tuple(name for name, host in hosts.items() if group in host.groups) for group in groups}
    return Inventory(path, hosts, members)


def _read_file(
    file: Path, groups: dict[str, _Group], hosts: dict[str, dict[str, Any]], host_where: dict[str, str]
) -> None:
    document = load(file)
    if document is None:
        return
    if not isinstance(document, YamlMapping):
        raise InputError(str(file), "no mapping of groups", "GROUP: {hosts: {NAME: {...}}}")
    for group, body in document.items():
        _read_group(group, body, document.where(group), groups, hosts, host_where)


def _read_group(
    name: str,
    body: Any,
    where: str,
    groups: dict[str, _Group],
    hosts: dict[str, dict[str, Any]],
    host_where: dict[str, str],
) -> None:
    group = groups.setdefault(name, _Group())
    if body is None:
        return
    if not isinstance(body, YamlMapping):
        raise InputError(where, f"group '{name}' holds {type(body).__name__}", "hosts, vars or children")
    only_keys(body, ("hosts", "vars", "children"), "key of a group")
    for key, value in body.items():
        if value is not None and not isinstance(value, YamlMapping):
            raise InputError(body.where(key), f"'{key}' is no mapping", f"{key}: with one NAME: per line")
    variables = body.get("vars") or YamlMapping()
    check_names(variables)
    group.variables.update(variables)
    for pattern, given in (body.get("hosts") or {}).items():
        line = body["hosts"].where(pattern)
        if given is not None and not isinstance(given, YamlMapping):
            raise InputError(line, f"host '{pattern}' holds {type(given).__name__}", "variables, one per line")
        if given:
            check_names(given)
        for host in expand(pattern):
            hosts.setdefault(host, {}).update(given or {})
            host_where.setdefault(host, line)
            if host not in group.hosts:
                group.hosts.append(host)
    for child, inner in (body.get("children") or {}).items():
        if child not in group.children:
            group.children.append(child)
        _read_group(child, inner, body["children"].where(child), groups, hosts, host_where)


def check_names(variables: YamlMapping) -> None:
    """Raises InputError for a variable whose name is nearly one of rigwright's (`limts`): it would be ignored in silence."""
    for name in variables:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise InputError(variables.where(name), f"'{name}' is no name of a variable", "letters, digits and _")
        near = difflib.get_close_matches(name, OUR_VARIABLES, n=1, cutoff=0.8)
        if near and name not in OUR_VARIABLES:
            found = f"unknown variable '{name}'; did you mean '{near[0]}'?"
            raise InputError(
                variables.where(name), found, f"one of {', '.join(OUR_VARIABLES)}, or a name less like them"
            )


def expand(pattern: str) -> list[str]:
    """`node[01:03]` as node01, node02, node03; letters too; a plain name as itself."""
    found = _RANGE.search(pattern)
    if not found:
        return [pattern]
    first, last, step = found.group(1), found.group(2), int(found.group(3) or 1)
    if first.isdigit() and last.isdigit():
        middle = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1, step)]
    else:
        middle = [chr(code) for code in range(ord(first), ord(last) + 1, step)]
    return [name for word in middle for name in expand(pattern[: found.start()] + word + pattern[found.end() :])]


_REFUSED = (
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
    "ansible_ssh_args",
    "ansible_password",
    "ansible_ssh_pass",
)


def _connection(variables: dict[str, Any], where: str) -> dict[str, Any]:
    """The variables, those of the connection checked, its passwords as secrets. Raises InputError."""
    for name in _REFUSED:
        if name in variables:
            found = f"{name}, which rigwright does not use"
            raise InputError(where, found, "an ssh key; options in ~/.ssh/config, which is read", f"take {name} out")
    for name in ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"):
        if name in variables:
            variables["ansible_become_password"] = variables[name] = Secret(str(variables[name]))
    port = variables.get("ansible_port", 22)
    if not str(port).isdigit() or not 0 < int(port) < 65536:
        raise InputError(where, f"ansible_port is {port!r}", "a number from 1 to 65535")
    return variables


def _parents(groups: Mapping[str, _Group]) -> dict[str, list[str]]:
    parents: dict[str, list[str]] = {name: [] for name in groups}
    for name, group in groups.items():
        for child in group.children:
            parents[child].append(name)
    return parents


def _groups_of(host: str, groups: Mapping[str, _Group], parents: Mapping[str, list[str]]) -> list[str]:
    """`all` first, then by depth and name: later ones win, as in Ansible."""
    depth: dict[str, int] = {"all": 0}

    def climb(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            raise InputError(
                name, f"the groups {' > '.join((*above, name))} hold each other", "groups without a circle"
            )
        own = 1 + max((climb(parent, (*above, name)) for parent in parents[name] if parent != "all"), default=0)
        depth[name] = max(depth.get(name, 0), own)
        return own

    direct = [name for name, group in groups.items() if host in group.hosts and name not in ("all", "ungrouped")]
    for name in direct:
        climb(name, ())
    if not direct:
        depth["ungrouped"] = 1
    return sorted(depth, key=lambda name: (depth[name], name))


def _vars_files(folder: Path, name: str) -> dict[str, Any]:
    """The variables of `NAME`, `NAME.yml`, `NAME.yaml` or every file in the directory `NAME/`."""
    files = [file for file in (folder / f"{name}.yml", folder / f"{name}.yaml", folder / name) if file.is_file()]
    if (folder / name).is_dir():
        files += sorted(file for file in (folder / name).iterdir() if file.suffix in (".yml", ".yaml"))
    variables: dict[str, Any] = {}
    for file in files:
        document = load(file)
        if document is None:
            continue
        if not isinstance(document, YamlMapping):
            raise InputError(str(file), "no mapping of variables", "NAME: VALUE, one per line")
        check_names(document)
        variables.update(document)
    return variables
