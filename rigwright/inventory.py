"""Reads inventories: hosts and groups in Ansible's YAML format, their variables by Ansible's precedence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rigwright.errors import InputError
from rigwright.hosts import Host, Inventory
from rigwright.patterns import expand
from rigwright.yamlfile import Mapping as YamlMapping
from rigwright.yamlfile import load, only_keys

OUR_VARIABLES = ("rig", "driver", "cuda", "kernel_cmdline", "limits", "cuda_repository", "slots", "ssh_known_hosts")


_Given = dict[str, tuple[Any, str]]
"""Variables with where each was given."""


@dataclass
class _Group:
    variables: _Given = field(default_factory=dict)
    children: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)


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
    host_variables: dict[str, _Given] = {}
    host_where: dict[str, str] = {}
    for file in files:
        _read_file(file, groups, host_variables, host_where)
    folder = path if path.is_dir() else path.parent
    parents = _parents(groups)
    hosts: dict[str, Host] = {}
    for name, where in host_where.items():
        mine = _groups_of(name, groups, parents, where)
        given: _Given = {}
        for group in mine:
            given.update(groups[group].variables)
        for group in mine:
            given.update(_vars_files(folder / "group_vars", group))
        given.update(host_variables[name])
        given.update(_vars_files(folder / "host_vars", name))
        variables = {variable: value for variable, (value, _) in given.items()}
        variables["inventory_hostname"] = name
        variables["group_names"] = [group for group in mine if group != "all"]
        hosts[name] = Host(name, tuple(mine), variables, where, {variable: at for variable, (_, at) in given.items()})
    members = {group: tuple(name for name, host in hosts.items() if group in host.groups) for group in groups}
    return Inventory(path, hosts, members)


def _read_file(file: Path, groups: dict[str, _Group], hosts: dict[str, _Given], host_where: dict[str, str]) -> None:
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
    hosts: dict[str, _Given],
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
    group.variables.update(_given(variables))
    for pattern, given in (body.get("hosts") or {}).items():
        line = body["hosts"].where(pattern)
        if given is not None and not isinstance(given, YamlMapping):
            raise InputError(line, f"host '{pattern}' holds {type(given).__name__}", "variables, one per line")
        if given:
            check_names(given)
        for host in _expanded(pattern, line):
            hosts.setdefault(host, {}).update(_given(given) if given else {})
            host_where.setdefault(host, line)
            if host not in group.hosts:
                group.hosts.append(host)
    for child, inner in (body.get("children") or {}).items():
        if child not in group.children:
            group.children.append(child)
        _read_group(child, inner, body["children"].where(child), groups, hosts, host_where)


def _given(variables: YamlMapping) -> _Given:
    return {name: (value, variables.where(name)) for name, value in variables.items()}


def check_names(variables: YamlMapping) -> None:
    """Raises InputError for a variable whose name is nearly one of rigwright's (`limts`): it would be ignored in silence."""
    for name in variables:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise InputError(variables.where(name), f"'{name}' is no name of a variable", "letters, digits and _")
        near = difflib.get_close_matches(name, OUR_VARIABLES, n=1, cutoff=0.82)
        if near and name not in OUR_VARIABLES:
            found = f"unknown variable '{name}'; did you mean '{near[0]}'?"
            raise InputError(
                variables.where(name), found, f"one of {', '.join(OUR_VARIABLES)}, or a name less like them"
            )


def _expanded(pattern: str, where: str) -> list[str]:
    try:
        return expand(pattern)
    except ValueError as error:
        raise InputError(where, str(error), "a range such as [01:16] or [a:c]") from None


def _parents(groups: Mapping[str, _Group]) -> dict[str, list[str]]:
    parents: dict[str, list[str]] = {name: [] for name in groups}
    for name, group in groups.items():
        for child in group.children:
            parents[child].append(name)
    return parents


def _groups_of(host: str, groups: Mapping[str, _Group], parents: Mapping[str, list[str]], where: str) -> list[str]:
    """`all` first, then by depth and name: later ones win, as in Ansible."""
    depth: dict[str, int] = {"all": 0}

    def climb(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            circle = " > ".join((*above, name))
            raise InputError(where, f"the groups {circle} hold each other", "groups without a circle")
        own = 1 + max((climb(parent, (*above, name)) for parent in parents[name] if parent != "all"), default=0)
        depth[name] = max(depth.get(name, 0), own)
        return own

    direct = [name for name, group in groups.items() if host in group.hosts and name not in ("all", "ungrouped")]
    for name in direct:
        climb(name, ())
    if not direct:
        depth["ungrouped"] = 1
    return sorted(depth, key=lambda name: (depth[name], name))


def host_variables(folder: Path, name: str) -> dict[str, Any]:
    """What `host_vars/` of an inventory's folder says of a host, which the inventory need not have; {} when nothing."""
    return {variable: value for variable, (value, _) in _vars_files(folder / "host_vars", name).items()}


def _vars_files(folder: Path, name: str) -> _Given:
    """The variables of `NAME`, `NAME.yml`, `NAME.yaml` or every file in the directory `NAME/`."""
    files = [file for file in (folder / f"{name}.yml", folder / f"{name}.yaml", folder / name) if file.is_file()]
    if (folder / name).is_dir():
        found = (file for file in (folder / name).rglob("*") if file.is_file() and not file.name.startswith("."))
        files += sorted(file for file in found if file.suffix in (".yml", ".yaml", ""))
    variables: _Given = {}
    for file in files:
        document = load(file)
        if document is None:
            continue
        if isinstance(document, str) and document.startswith("$ANSIBLE_VAULT"):
            raise InputError(
                str(file), "a file encrypted by ansible-vault", "plain YAML", "keep secrets out of the inventory"
            )
        if not isinstance(document, YamlMapping):
            raise InputError(str(file), "no mapping of variables", "NAME: VALUE, one per line")
        check_names(document)
        variables.update(_given(document))
    return variables
