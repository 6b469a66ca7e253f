"""Reads inventories like Ansible: YAML, INI, groups, children, `group_vars/`, `host_vars/`, with its precedence."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from rigwright.core.errors import InputError
from rigwright.inventory import files
from rigwright.inventory.groups import Declared, Given
from rigwright.inventory.model import Host, Inventory

__all__ = ["Inventory", "host_variables", "read"]


def read(path: Path) -> Inventory:
    """Reads the inventory in a file, or in all files of a directory, with its `group_vars/` and `host_vars/`.

    Raises InputError when there is no inventory, or when a file of it is wrong.
    """
    sources = list(files.sources(path))
    if not sources:
        passed = sorted(file_path.name for file_path in path.glob("*.ini")) if path.is_dir() else []
        todo = "invoke init makes one here; or --inventory PATH or RIGWRIGHT_INVENTORY names one"
        if passed:
            todo = f"--inventory {path / passed[0]}: in a directory .ini files are passed by, as Ansible does"
        raise InputError(str(path), "no inventory there", "a file, or a directory with hosts.yml", todo)
    declared = Declared()
    for file in sources:
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
    """The variables of a host in `host_vars/` of a folder; {} if none. The host need not be in the inventory."""
    return {variable: value for variable, (value, _) in files.variables(folder / "host_vars", name).items()}
