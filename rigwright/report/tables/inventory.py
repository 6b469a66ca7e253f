"""An inventory as the document of `ansible-inventory --list`, as the tree of `--graph`, and as a table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from rigwright.core.secrets import SHOWN, Secret, is_name
from rigwright.inventory.model import Host, Inventory
from rigwright.report.labels import as_is
from rigwright.report.tables import with_columns, write

_MADE = ("inventory_hostname", "inventory_hostname_short", "group_names")


def listing(inventory: Inventory, names: Collection[str]) -> dict[str, Any]:
    """Each group with its own hosts and its children, and under `_meta` the variables of each host; only hosts in
    `names`.

    A secret is `(secret)`, and so is what has the name of one (`password`, `api_token`, `key`), at any depth.
    """
    groups: dict[str, Any] = {}
    for group, children in inventory.children.items():
        hosts = [name for name in inventory.own[group] if name in names] if group != "all" else []
        groups[group] = _without_empty({"children": list(children), "hosts": hosts})
    variables = {name: _variables(inventory.hosts[name]) for name in inventory.hosts if name in names}
    return {"_meta": {"hostvars": _without_empty(variables)}, **_without_empty(groups)}


def _without_empty(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value}


def _variables(host: Host) -> dict[str, Any]:
    given = {name: value for name, value in host.variables.items() if name not in _MADE}
    return {name: _shown(name, value) for name, value in given.items()}


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, Secret) or is_name(name) or (name == "key" and "://" not in str(value)):
        return SHOWN
    if isinstance(value, Mapping):
        return {key: _shown(key, item) for key, item in value.items()}
    return [_shown(name, item) for item in value] if isinstance(value, list) else value


def graph(inventory: Inventory, names: Collection[str], group: str = "all", depth: int = 0) -> Iterator[str]:
    """The lines of the tree: a group, its child groups, then its own hosts; only hosts in `names`."""
    lead = "  |" * depth + "--" if depth else ""
    yield f"{lead}@{group}:"
    for child in inventory.children[group]:
        yield from graph(inventory, names, child, depth + 1)
    for name in inventory.own[group] if group != "all" else ():
        if name in names:
            yield "  |" * (depth + 1) + f"--{name}"


def table(console: Console, inventory: Inventory, hosts: Sequence[Host]) -> None:
    """Writes a line for each host: its address, groups, rig and driver, and the file that declares it."""
    wrap = ("address", "groups", "declared in")
    rows = with_columns("host", "address", "groups", "rig", "driver", "declared in", wrap=wrap)
    folder = inventory.path if inventory.path.is_dir() else inventory.path.parent
    for host in hosts:
        driver = host.variables.get("driver")
        branch = driver.get("branch", "") if isinstance(driver, dict) else driver or ""
        groups, rig = ", ".join(host.variables["group_names"]), host.variables.get("rig") or ""
        cells = (host.name, _address(host), groups, rig, branch, host.where.removeprefix(f"{folder}/"))
        rows.add_row(*(as_is(str(cell)) for cell in cells))
    write(console, rows)


def _address(host: Host) -> str:
    """USER@ADDRESS:PORT, as far as the inventory has it."""
    port = host.connection("ansible_port")
    if host.is_this_machine:
        return "this machine"
    return host.login + (f":{port}" if port else "")
