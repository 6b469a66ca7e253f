"""Commands for a machine before it is provisioned, and for what is known without asking one."""

from __future__ import annotations

from rigwright.cli import words
from rigwright.cli.command import command


@command(
    help={
        "host": "the name that it gets in the inventory",
        "address": "USER@HOST or USER@HOST:PORT",
        "inventory": "the inventory's directory (default: $RIGWRIGHT_INVENTORY, then ./inventory)",
        "rig": "which rig it is, where several have its GPUs",
        "supply_w": "watts of its power supply, where a rig is drafted",
        "yes": "record the host key without asking, once you have compared it",
    },
)
def init(host: str, address: str, inventory: str = "", rig: str = "", supply_w: str = "", yes: bool = False) -> int:
    """Describe a machine of your own: shows its ssh key, looks at its GPUs, writes the inventory. Changes nothing on it."""
    from rigwright import init as first

    return first.init(first.Asked(host, address, inventory, rig, supply_w, yes))


@command(help={"host": words.HELP["host"], "inventory": words.HELP["inventory"], "yes": "record it without asking"})
def trust(host: str | None = None, inventory: str = "", yes: bool = False) -> int:
    """Show the ssh key that a host offers, and record it when you say that it is the right one."""
    from rigwright.trust import trust as record

    return record(host, inventory, yes)


@command(
    positional=["name"],
    help={
        "name": "a GPU, rig, driver, CUDA toolkit or PCI id, an error's text in quotes, 'Xid 79', or - to read a log",
        "inventory": words.HELP["inventory"],
    },
)
def explain(name: str, inventory: str = "") -> int:
    """What is known of a GPU, a machine, a driver, an error text or an Xid: cause, fix, source. Asks no host."""
    from rigwright import knowledge

    return knowledge.explain(name, inventory)


@command(
    name="list",
    help={
        "host": words.HELP["host"],
        "inventory": words.HELP["inventory"],
        "graph": "as a tree of groups",
        "json": "write what `ansible-inventory --list` would to FILE, or to stdout with -",
    },
)
def inventory_list(host: str = "", inventory: str = "", graph: bool = False, json: str = "") -> int:
    """The hosts of the inventory: address, groups, rig, driver, and where each is declared. Asks no host."""
    from rigwright import knowledge

    return knowledge.inventory_list(host, inventory, graph, json)


@command(
    name="check",
)
def catalogue_check() -> int:
    """Read all of the catalogue and compare it with NVIDIA's own device list."""
    from rigwright import knowledge

    return knowledge.check()


@command(
    name="plan",
    help={
        "rig": "a machine of the catalogue, or FILE.yml for one of your own, also one not bought yet",
        "host": "a host of the inventory: its rig and its limits; nothing is asked of it",
        "inventory": words.HELP["inventory"],
        "limits_w": "power limit of each GPU in watts, such as 200 (in place of the machine's own limits)",
        "clocks_mhz": "highest graphics clock of each GPU in MHz, such as 1005 (likewise)",
        "supplies": "other supplies: COUNTxWATTS such as 2x1100, several joined by +",
        "price_per_kwh": "for the cost of a day, such as 0.30",
        "json": words.HELP["json"],
    },
)
def power_plan(
    rig: str = "",
    host: str = "",
    inventory: str = "",
    limits_w: str = "",
    clocks_mhz: str = "",
    supplies: str = "",
    price_per_kwh: str = "",
    json: str = "",
) -> int:
    """Show whether the power supplies carry a machine, also when all GPUs ramp together, and which limits would fit.

    Asks no host. Exit 2 when it does not fit. How it reckons: docs/power.md.
    """
    from rigwright import knowledge

    asked = knowledge.PowerAsked(rig, host, inventory, limits_w, clocks_mhz, supplies, price_per_kwh, json)
    return knowledge.power_plan(asked)
