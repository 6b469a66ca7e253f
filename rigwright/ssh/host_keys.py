"""The host keys that hosts and gateways offer: whether one is accepted, and the error of one that is not.

known_hosts.py has the recorded keys.
"""

from __future__ import annotations

import paramiko
from msgspec import Struct

from rigwright.core.errors import HostKeyRefused
from rigwright.inventory.model import Host
from rigwright.ssh import known_hosts
from rigwright.ssh.route import Hop


class KeyNotAccepted(Exception):
    """The host key of a hop is revoked (`revoked` says where), or is not the recorded one."""

    def __init__(self, key: paramiko.PKey, revoked: str, recorded: known_hosts.Record | None) -> None:
        super().__init__("the host key is not accepted")
        self.key = key
        self.revoked = revoked
        self.recorded = recorded


def require_recorded(hop: Hop, key: paramiko.PKey) -> None:
    """Raises KeyNotAccepted for a host key that is revoked, or is not the first on record of its kind."""
    same_kind = [record for record in hop.records if record.key.get_name() == key.get_name()]
    if revoked := hop.why_revoked(key):
        raise KeyNotAccepted(key, revoked, None)
    if not same_kind or same_kind[0].key != key:
        raise KeyNotAccepted(key, "", next(iter(same_kind or hop.records), None))


def refusal(where: str, host: Host, hop: Hop, error: KeyNotAccepted) -> HostKeyRefused:
    """The error of a hop on the way to a host, whose host key is revoked, not known, or another one than before."""
    todo = f"invoke trust --host {host.name}"
    which = "the host key" if hop.is_last else f"the host key of the gateway {hop.known_as}"
    if error.revoked:
        problem = f"{which} is revoked ({error.revoked}): {known_hosts.fingerprint(error.key)}"
        todo = "make a new host key on that machine"
        return HostKeyRefused(where, problem, "a key that is not revoked", todo, f"{which} is revoked")
    if error.recorded is None:
        authority = next(filter(None, (known_hosts.authority(file, hop.known_as) for file in hop.files)), "")
        expected = "a key that you have checked"
        expected += f"; certificates of an authority ({authority}) are not supported" if authority else ""
        return HostKeyRefused(where, f"{which} is not known", expected, todo)
    old = error.recorded
    problem = f"{which} has changed: it is now {known_hosts.fingerprint(error.key)}"
    expected = f"the recorded {known_hosts.fingerprint(old.key)}"
    expected += f" ({', '.join(text for text in (old.where, old.since) if text)})"
    todo = f"{old.removal}, then {todo}" if hop.precedes_own(old) else f"{todo}; that key then counts"
    fix = f"if the machine was re-installed or replaced: {todo}"
    return HostKeyRefused(where, problem, expected, fix, f"{which} is another one")


class OfferedKey(Struct, frozen=True):
    """The host key of a host or gateway. `name`: its name in known_hosts. `records`: the keys of that name in all
    files, in the order of precedence. `blocking`: other keys of its kind that precede one that `known_hosts.trust`
    records. `gateway`: it is of a gateway."""

    name: str
    key: paramiko.PKey
    records: tuple[known_hosts.Record, ...]
    blocking: tuple[known_hosts.Record, ...]
    gateway: bool

    @property
    def known(self) -> known_hosts.Record | None:
        """The record of this key; None without one, or if another key precedes it."""
        same_kind = [record for record in self.records if record.key.get_name() == self.key.get_name()]
        return same_kind[0] if same_kind and same_kind[0].key == self.key else None

    @property
    def others(self) -> tuple[known_hosts.Record, ...]:
        """The records of other keys."""
        return tuple(record for record in self.records if record.key != self.key)
