"""What is added to the error of a host that does not answer, where the inventory itself tells why."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from rigwright import inventory, showing
from rigwright.errors import RigwrightError, Unreachable
from rigwright.hosts import Host

_EXAMPLES = [
    ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
]
"""Addresses that are nobody's: RFC 5737 and RFC 3849."""


def hinted(error: RigwrightError, host: Host, path: Path, lab: Path) -> RigwrightError:
    """The error, with what to do besides: for an address out of a book, and for a host that the lab has too.

    `path` is the inventory that was read, `lab` where the lab's would be.
    """
    if not isinstance(error, Unreachable):
        return error
    if _is_example(host.address):
        hint = f"{host.address} is an address for examples ({host.where}); invoke init describes a machine of yours"
        error.todo = hint
    if path.resolve() != lab.resolve() and (lab / "hosts.yml").is_file() and host.name in inventory.read(lab).hosts:
        hint = f"the lab has a host of that name: add --inventory {showing.short(lab)}"
        error.todo = f"{error.todo}; {hint}" if error.todo else hint
    return error


def _is_example(address: str) -> bool:
    try:
        return any(ipaddress.ip_address(address) in net for net in _EXAMPLES)
    except ValueError:  # a name
        return False
