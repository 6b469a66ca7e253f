"""Reads inventories in Ansible's YAML format."""

from __future__ import annotations

from typing import Any

from rigwright.core.errors import InputError
from rigwright.core.yaml_source import Mapping, only_keys
from rigwright.inventory import names
from rigwright.inventory.groups import Declared, Given


def declare(document: Any, file: str, declared: Declared) -> None:
    """Adds the content of a YAML document to `declared`. Raises InputError when it is not a valid inventory."""
    if document is None:
        return
    if not isinstance(document, Mapping):
        raise InputError(file, "no mapping of groups", "GROUP: {hosts: {NAME: {...}}}")
    if isinstance(document.get("plugin"), str):
        problem = f"the configuration of the inventory plugin {document['plugin']}, which rigwright does not run"
        todo = f"ansible-inventory -i {file} --list --yaml --export > hosts.yml, without `plugin`, makes one"
        raise InputError(document.where("plugin"), problem, "an inventory", todo)
    for group, body in document.items():
        _group(group, body, document.where(group), declared)


def _group(name: str, body: Any, where: str, declared: Declared) -> None:
    declared.group(name)
    if body is None:
        return
    if not isinstance(body, Mapping):
        raise InputError(where, f"group '{name}' holds {type(body).__name__}", "hosts, vars or children")
    only_keys(body, ("hosts", "vars", "children"), "key of a group")
    for key, value in body.items():
        if value is not None and not isinstance(value, Mapping):
            raise InputError(body.where(key), f"'{key}' is no mapping", f"{key}: with one NAME: per line")
    for key in body:  # in file order, because the last value of a host's variable wins
        if body[key] and key == "vars":
            declared.variables(name, given(body["vars"]))
        elif body[key] and key == "hosts":
            _hosts(name, body["hosts"], declared)
        elif body[key] and key == "children":
            for child, inner in body["children"].items():
                line = body["children"].where(child)
                _group(child, inner, line, declared)
                declared.child(name, child, line)


def _hosts(group: str, hosts: Mapping, declared: Declared) -> None:
    for pattern, variables in hosts.items():
        line = hosts.where(pattern)
        if variables is not None and not isinstance(variables, Mapping):
            raise InputError(line, f"host '{pattern}' holds {type(variables).__name__}", "variables, one per line")
        found_names, port = names.hosts(pattern, line)
        mine = given(variables) if variables else {}
        for host in found_names:
            declared.host(host, group, line, port, mine)


def given(variables: Mapping) -> Given:
    """The variables of a mapping with the places where they were set (FILE:LINE). Raises InputError for a bad name."""
    for name in variables:
        names.variable(name, variables.where(name))
    return {name: (value, variables.where(name)) for name, value in variables.items()}
