"""rigwright: a fresh Ubuntu or Debian box with NVIDIA GPUs becomes a proven deep-learning server, over plain SSH."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def connect(name: str, inventory: str = "") -> Any:
    """A `fabric.Connection` to a host of the inventory, for tasks of your own (docs/guide/own_tasks.md).

    It opens at its first use: with the keys, gateways and sudo password of the inventory and of ssh_config, and only if
    the host key is the recorded one. `inventory`: its path (default: $RIGWRIGHT_INVENTORY, then ./inventory). Raises
    Invoke's Exit, with a message for a person, for a name that the inventory does not have and for a host that cannot
    be reached.
    """
    import os
    from pathlib import Path

    from invoke.exceptions import Exit

    from rigwright.core.errors import RigwrightError, UsageError
    from rigwright.inventory import read
    from rigwright.ssh import fabric_connection

    path = Path(inventory or os.environ.get("RIGWRIGHT_INVENTORY") or "inventory")
    try:
        hosts = read(path).select(name)
        if len(hosts) != 1:
            found = f"'{name}' is {len(hosts)} hosts of {path}"
            raise UsageError("connect", found, "the name of one host", "connect(NAME) for each of them")
        return fabric_connection.to(hosts[0])
    except RigwrightError as error:
        raise Exit(f"error {error}", error.exit_code) from error
