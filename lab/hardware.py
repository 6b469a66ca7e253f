"""Owns the seam to lab/rig.py, which makes the simulated hardware: four functions, loaded only for a host with a rig."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from lab.boot import BootEntry


class Hardware(Protocol):
    """What lab.rig offers."""

    def archive(self, cache: Path, say: Callable[[str], None]) -> Path:
        """The folder that the lab's package archive serves over HTTP."""

    def layers(self, rig: str, cache: Path, base: Path, say: Callable[[str], None], distro: str) -> list[Path]:
        """Read-only images of this rig above the base, topmost first."""

    def install(self, rig: str, name: str, root: Path, hw: Path, archive_url: str, distro: str) -> None:
        """Once, on the fresh disk mounted at `root`."""

    def power_on(self, rig: str, root: Path, hw: Path, boot: BootEntry) -> list[tuple[int, str]]:
        """Before every boot, with the entry that GRUB chose; what its kernel says first, with priorities."""


def hardware() -> Hardware:
    """The simulated hardware."""
    return cast(Hardware, importlib.import_module("lab.rig"))
