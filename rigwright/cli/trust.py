"""`invoke trust`: records the host key of a host after somebody confirmed it."""

from __future__ import annotations

from rigwright.cli.answer import answer
from rigwright.cli.options import TrustOptions
from rigwright.cli.runner import read_inventory
from rigwright.core import prompt
from rigwright.ssh import connect, known_hosts

_FIX = "the same command with --yes, once the key is compared"


def trust(options: TrustOptions) -> int:
    """Shows the key that each host offers and records it after a yes; returns the exit code."""
    return answer(options, lambda _console: _trust(options))


def _trust(options: TrustOptions) -> None:
    inventory = read_inventory(options.inventory)
    for host in [inventory.only()] if options.host is None else inventory.select(options.host):
        name, key = connect.offered_key(host, 20)
        print(f"{host.name} ({name}) offers {known_hosts.fingerprint(key)}")
        print("Compare it at the machine's console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
        if not options.yes:
            prompt.insist("trust", "Trust it?", _FIX, "the answer was no; nothing was recorded")
        print(f"recorded in {known_hosts.trust(name, key)}")
