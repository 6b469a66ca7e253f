"""Reads inventories as Ansible does: YAML and INI, groups and children, `group_vars/` and `host_vars/`, by its precedence."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from rigwright.errors import InputError
from rigwright.hosts import Host, Inventory
from rigwright.inventory import files
from rigwright.inventory.declared import Declared, Given
from rigwright.inventory.names import OUR_VARIABLES

__all__ = ["OUR_VARIABLES", "Inventory", "host_variables", "read"]


def read(path: Path) -> Inventory:
    """The inventory in a file, or in all files of a directory, with `group_vars/` and `host_vars/` beside. Raises InputError."""
    found = list(files.sources(path))
    if not found:
        passed = sorted(one.name for one in path.glob("*.ini")) if path.is_dir() else []
        todo = "name one with --inventory PATH or RIGWRIGHT_INVENTORY"
        if passed:
            todo = f"--inventory {path / passed[0]}: in a directory .ini files are passed by, as Ansible does"
        raise InputError(str(path), "no inventory there", "a file, or a directory with hosts.yml", todo)
    declared = Declared()
    for file in found:
        files.declare(file, declared)
    declared.settle()
    folder = path if path.is_dir() else path.parent
    of_group = functools.cache(lambda name: files.variables(folder / "group_vars", name))
    hosts = {}
    for name in declared.hosts:
        groups = declared.groups_of(name)
        given: Given = {}
        for source in (
            *(declared.groups[group].variables for group in groups),
            *(of_group(group) for group in groups),
            declared.hosts[name],
            files.variables(folder / "host_vars", name),
        ):
            given.update(source)
        hosts[name] = _host(name, groups, given, declared.where[name])
    children = {name: tuple(group.children) for name, group in declared.groups.items()}
    own = {name: tuple(group.hosts) for name, group in declared.groups.items()}
    return Inventory(path, hosts, {name: declared.members(name) for name in declared.groups}, children, own)


def _host(name: str, groups: list[str], given: Given, where: str) -> Host:
    variables = {variable: value for variable, (value, _) in given.items()}
    variables["inventory_hostname"] = name
    variables["inventory_hostname_short"] = name.partition(".")[0]
    variables["group_names"] = sorted(group for group in groups if group != "all")
    return Host(name, tuple(groups), variables, where, {variable: at for variable, (_, at) in given.items()})


def host_variables(folder: Path, name: str) -> dict[str, Any]:
    """What `host_vars/` of an inventory's folder says of a host, which the inventory need not have; {} when nothing."""
    return {variable: value for variable, (value, _) in files.variables(folder / "host_vars", name).items()}
