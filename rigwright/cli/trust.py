"""`invoke trust`: records the host key of a host after somebody confirmed it."""

from __future__ import annotations

from rich.console import Console

from rigwright.cli import host_key
from rigwright.cli.answer import Answer, answered
from rigwright.cli.options import TrustOptions
from rigwright.cli.runner import read_inventory


@answered
def trust(options: TrustOptions, _console: Console) -> Answer:
    """Shows the key that each host and its gateways offer and records it after a yes; exit 2 when another key still
    counts."""
    inventory = read_inventory(options.inventory, options.vault_password_file)
    hosts = [inventory.only()] if options.host is None else inventory.select(options.host)
    otherwise = "the answer was no; nothing was recorded"
    left = [command for host in hosts for command in host_key.confirm("trust", host, options.yes, otherwise)]
    return Answer(exit_code=2 if left else 0)
