"""An inventory as people know it: the document of `ansible-inventory --list`, the tree of `--graph`, and a table of hosts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from rigwright.hosts import Host, Inventory
from rigwright.report.words import as_is

_OURS = ("inventory_hostname", "inventory_hostname_short", "group_names")
_SECRET = re.compile(r"(^|_)(pass|password|passwd|passphrase|secret|token)$", re.IGNORECASE)


def listing(inventory: Inventory, names: Collection[str]) -> dict[str, Any]:
    """Groups with their own hosts and their children, and under `_meta` each host's variables; only of these hosts.

    A value whose variable is called a password, a secret or a token is `(secret)`.
    """
    made: dict[str, Any] = {}
    for group, children in inventory.children.items():
        body = {
            "children": list(children),
            "hosts": [name for name in inventory.own[group] if name in names] if group != "all" else [],
        }
        made[group] = {key: value for key, value in body.items() if value}
    variables = {name: _variables(inventory.hosts[name]) for name in inventory.hosts if name in names}
    hostvars = {name: found for name, found in variables.items() if found}
    return {"_meta": {"hostvars": hostvars}, **{group: body for group, body in made.items() if body}}


def _variables(host: Host) -> dict[str, Any]:
    given = {name: value for name, value in host.variables.items() if name not in _OURS}
    return {name: "(secret)" if _SECRET.search(name) else value for name, value in given.items()}


def graph(inventory: Inventory, names: Collection[str], group: str = "all", depth: int = 0) -> Iterator[str]:
    """The lines of the tree: a group, its child groups, then its own hosts; only these hosts."""
    lead = "  |" * depth + "--" if depth else ""
    yield f"{lead}@{group}:"
    for child in inventory.children[group]:
        yield from graph(inventory, names, child, depth + 1)
    for name in inventory.own[group] if group != "all" else ():
        if name in names:
            yield "  |" * (depth + 1) + f"--{name}"


def table(console: Console, inventory: Inventory, hosts: Sequence[Host]) -> None:
    """A line for each host: where it is reached, its groups, its rig and driver."""
    rows = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("host", "address", "groups", "rig", "driver", "declared in"):
        rows.add_column(column, overflow="fold", no_wrap=column in ("host", "rig", "driver"))
    folder = inventory.path if inventory.path.is_dir() else inventory.path.parent
    for host in hosts:
        driver = host.variables.get("driver")
        branch = driver.get("branch", "") if isinstance(driver, dict) else driver or ""
        groups = ", ".join(host.variables["group_names"])
        cells = (
            host.name,
            _address(host),
            groups,
            host.variables.get("rig") or "",
            branch,
            host.where.removeprefix(f"{folder}/"),
        )
        rows.add_row(*(as_is(str(cell)) for cell in cells))
    console.print(rows)


def _address(host: Host) -> str:
    """USER@ADDRESS:PORT, as far as the inventory says it."""
    port = host.connection("ansible_port")
    if host.variables.get("ansible_connection") == "local":
        return "this machine"
    return host.login + (f":{port}" if port else "")
