"""A host of the inventory as a connection of Fabric, for tasks of users (docs/guide/own_tasks.md).

Rigwright's own work does not go through it: Fabric runs one command in each round trip, and rigwright many.
"""

from __future__ import annotations

import time
from typing import Any

from fabric import Config, Connection
from invoke.exceptions import Exit

from rigwright.core.errors import RigwrightError, UsageError
from rigwright.inventory.model import Host
from rigwright.ssh import connect, route


class HostConnection(Connection):  # type: ignore[misc]  # Fabric has no types
    """A connection that opens at its first use with the keys, the gateways, and the verified host keys of the inventory
    and of ssh_config. `sudo` has the password of the inventory.

    For an unreachable host it raises Invoke's Exit with the message and exit code of rigwright's error.
    """

    def __init__(self, host: Host) -> None:
        last = route.to(host).connection
        password = host.connection("ansible_become_password")
        overrides = {"sudo": {"password": password.reveal() if hasattr(password, "reveal") else password}}
        super().__init__(last.host, user=last.user, port=last.port, config=Config(overrides=overrides, lazy=True))
        self._set(inventory_host=host)

    def open(self) -> None:
        """Logs in if the connection is not open. Raises Exit."""
        if self.is_connected:
            return
        try:
            session = connect.open_session(self.inventory_host, connect.CONNECT_S, lambda _abort: None)
        except RigwrightError as error:
            raise Exit(f"error {error}", error.exit_code) from error
        client = session.connection.client
        self._set(client=client, transport=client.get_transport(), opened=time.time())


def to(host: Host) -> Any:
    """The connection to a host of the inventory. Raises UsageError for this machine, which needs no connection."""
    if host.is_this_machine:
        problem = f"{host.name} is this machine (ansible_connection: local)"
        raise UsageError("connect", problem, "a host that is reached over ssh", "c.run(...), with the `c` of the task")
    return HostConnection(host)
