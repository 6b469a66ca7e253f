"""Reads inventories like Ansible: YAML, INI, groups, children, `group_vars/`, `host_vars/`, with its precedence."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rigwright.core.errors import InputError
from rigwright.inventory import files
from rigwright.inventory.groups import Declared, Given
from rigwright.inventory.model import Host, Inventory
from rigwright.inventory.secret_sources import PASSWORD_FIX, PASSWORD_VARIABLE
from rigwright.inventory.secrets import Sources

__all__ = ["Inventory", "host_variables", "read"]


def read(path: Path, vault_password_file: str = "") -> Inventory:
    """Reads the inventory in a file, or in all files of a directory, with its `group_vars/` and `host_vars/`.

    Secrets are not read yet. `vault_password_file` (default: that of the environment) opens what ansible-vault
    encrypted. Raises InputError when there is no inventory, or when a file of it is wrong.
    """
    folder = path if path.is_dir() else path.parent
    password_file = vault_password_file or os.environ.get(PASSWORD_VARIABLE, "")
    secrets = Sources(folder, password_file)
    sources = list(files.sources(path))
    if not sources:
        skipped = sorted(file_path.name for file_path in path.glob("*.ini")) if path.is_dir() else []
        fix = (
            "cd to the folder with your inventory, or --inventory PATH, or RIGWRIGHT_INVENTORY; "
            "invoke init makes a new one here"
        )
        if skipped:
            fix = f"--inventory {path / skipped[0]}: in a directory .ini files are passed by, as Ansible does"
        problem = "no inventory there" if path.is_absolute() else f"no inventory there: {path.absolute()}"
        raise InputError(str(path), problem, "a file, or a directory with hosts.yml", fix)
    declared = Declared()
    for file in sources:
        files.declare(file, declared, secrets.tags)
    declared.settle()
    of_group = functools.cache(lambda name: files.variables(folder / "group_vars", name, secrets))
    hosts = {}
    for name in declared.hosts:
        groups = declared.groups_of(name)
        layers = [
            *(declared.groups[group].variables for group in groups),
            *(layer for group in groups for layer in of_group(group)),
            declared.hosts[name],
            *files.variables(folder / "host_vars", name, secrets),
        ]
        hosts[name] = _host(name, groups, layers, declared.where[name])
    children = {name: tuple(group.children) for name, group in declared.groups.items()}
    own = {name: tuple(group.hosts) for name, group in declared.groups.items()}
    return Inventory(path, hosts, {name: declared.members(name) for name in declared.groups}, children, own)


def _host(name: str, groups: list[str], layers: Sequence[files.Layer], where: str) -> Host:
    """The host with the variables of the layers; one with vault files gets theirs when it is selected."""
    closed = tuple(layer for layer in layers if isinstance(layer, files.VaultFile))
    host = _with_variables(Host(name, tuple(groups), {}, where), layers)
    if not closed:
        return host
    host = replace(host, closed=PASSWORD_FIX.format(" and ".join(layer.path for layer in closed)))
    if not closed[0].sources.password_file:
        return host

    def opened() -> Host:
        whole = [layer.open() if isinstance(layer, files.VaultFile) else layer for layer in layers]
        return replace(_with_variables(host, whole), closed="")

    return replace(host, opened=opened)


def _with_variables(host: Host, layers: Sequence[files.Layer]) -> Host:
    given: Given = {}
    for layer in layers:
        given.update(layer if isinstance(layer, dict) else {})
    variables = {variable: value for variable, (value, _) in given.items()}
    variables["inventory_hostname"] = host.name
    variables["inventory_hostname_short"] = host.name.partition(".")[0]
    variables["group_names"] = sorted(group for group in host.groups if group != "all")
    return replace(
        host, variables=variables, origins={variable: at for variable, (_, at) in given.items()}, opened=None
    )


def host_variables(folder: Path, name: str) -> dict[str, Any]:
    """The variables of a host in `host_vars/` of a folder; {} if none. The host need not be in the inventory."""
    layers = files.variables(folder / "host_vars", name, Sources(folder))
    return {name: value for layer in layers if isinstance(layer, dict) for name, (value, _) in layer.items()}
