"""`invoke trust`: records the host key of a host after somebody confirmed it."""

from __future__ import annotations

from rich.console import Console

from rigwright.cli.answer import answered
from rigwright.cli.options import TrustOptions
from rigwright.cli.runner import read_inventory
from rigwright.core import prompt
from rigwright.ssh import connect, known_hosts


@answered
def trust(options: TrustOptions, _console: Console) -> None:
    """Shows the key that each host offers and records it after a yes."""
    inventory = read_inventory(options.inventory)
    for host in [inventory.only()] if options.host is None else inventory.select(options.host):
        name, key = connect.offered_key(host, 20)
        print(f"{host.name} ({name}) offers {known_hosts.fingerprint(key)}")
        print(known_hosts.COMPARE)
        if not options.yes:
            prompt.insist("trust", "Trust it?", known_hosts.COMPARED, "the answer was no; nothing was recorded")
        print(f"recorded in {known_hosts.trust(name, key)}")
