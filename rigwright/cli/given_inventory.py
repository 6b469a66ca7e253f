"""The inventory of --inventory, RIGWRIGHT_INVENTORY or ./inventory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def inventory_path(typed: str) -> Path:
    """The path of the inventory; `typed` is the value of --inventory."""
    return Path(typed or os.environ.get("RIGWRIGHT_INVENTORY") or "inventory")


def read_inventory(typed: str, vault_password_file: str = "") -> Any:
    """The inventory. Raises InputError."""
    from rigwright import inventory

    return inventory.read(inventory_path(typed), vault_password_file)


def given_inventory(typed: str) -> Any | None:
    """As `read_inventory`; None when no inventory is named and ./inventory does not exist. Raises InputError."""
    exists = typed or os.environ.get("RIGWRIGHT_INVENTORY") or Path("inventory").exists()
    return read_inventory(typed) if exists else None
