"""`invoke trust`: the one way a host key gets recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rigwright import asking, hostkeys, ssh
from rigwright.commands import read_inventory
from rigwright.errors import RigwrightError

_TODO = "the same command with --yes, once the key is compared"


def trust(host: str | None, inventory: str = "", yes: bool = False) -> int:
    """Shows the key that a host offers, and records it after a yes; returns the exit code."""
    return _guarded(lambda: _trust(host, inventory, yes))


def _trust(host: str | None, inventory: str, yes: bool) -> int:
    found = read_inventory(inventory)
    for one in [found.only()] if host is None else found.select(host):
        name, key = ssh.offered_key(one, 20)
        print(f"{one.name} ({name}) offers {hostkeys.fingerprint(key)}")
        print("Compare it at the machine's console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
        if not yes:
            asking.insist("trust", "Trust it?", _TODO, "the answer was no; nothing was recorded")
        print(f"recorded in {hostkeys.trust(name, key)}")
    return 0


def _guarded(act: Callable[[], int]) -> int:
    try:
        return act()
    except RigwrightError as error:
        print(f"error {error}", file=sys.stderr)
        return error.exit_code
