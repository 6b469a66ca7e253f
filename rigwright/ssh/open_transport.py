"""Chooses how a host of the inventory is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rigwright.inventory.model import Host
from rigwright.ssh.transport import Ssh, Transport


def open_transport(
    host: Host,
    environment: Mapping[str, str] | None = None,
    ask_password: Callable[[str], str] | None = None,
    root: bool = True,
) -> Transport:
    """The transport of a host of the inventory (`ansible_connection: local` is this machine)."""
    if host.is_this_machine:
        from rigwright.ssh.local import Local

        return Local(host, environment, ask_password, root)
    # Imported before the worker threads start, which would otherwise all wait for the import.
    from rigwright.ssh import connect  # noqa: F401

    return Ssh(host, environment, ask_password, root)
