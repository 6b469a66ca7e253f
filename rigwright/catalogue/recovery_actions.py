"""The steps that the driver asks for when a GPU cannot recover by itself (recovery_actions.yml)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from rigwright.catalogue.loader import table
from rigwright.catalogue.symptoms import Level
from rigwright.core.files.disk_cache import cached_on_disk


class RecoveryAction(Struct, frozen=True):
    """A step: `level` of its finding, `cause`, and `fix` with INDEX for the GPU's bus id."""

    level: Level
    cause: str
    fix: str


class _Actions(Struct, frozen=True):
    actions: dict[str, RecoveryAction]
    sources: dict[str, str]


@cached_on_disk
def all_recovery_actions() -> Mapping[str, RecoveryAction]:
    """All steps by nvidia-smi's words for them (Reset, Drain P2P). Raises InputError."""
    return table("recovery_actions.yml", _Actions, "actions").actions
