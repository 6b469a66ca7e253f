"""`invoke inventory.list`: the hosts of the inventory."""

from __future__ import annotations

from rich.console import Console

from rigwright.cli.answer import Answer, answered
from rigwright.cli.given_inventory import read_inventory
from rigwright.cli.options import InventoryListOptions
from rigwright.facts.plain import plain
from rigwright.report.labels import as_is
from rigwright.report.tables import inventory as table


@answered
def inventory_list(options: InventoryListOptions, _console: Console) -> Answer:
    """The hosts that --host names as a table, a tree, or `ansible-inventory`'s JSON."""
    inventory = read_inventory(options.inventory, options.vault_password_file)
    names = inventory.names(options.host or "all") if inventory.hosts else []

    def show(console: Console) -> None:
        if options.graph:
            for line in table.graph(inventory, frozenset(names)):
                console.print(as_is(line), highlight=False)
        else:
            table.table(console, inventory, [inventory.hosts[name] for name in names])

    data = plain(table.listing(inventory, frozenset(names))) if options.json else None
    return Answer(show, data, whole=True)
