"""The Debian releases that a virtual machine can run: suites, and the driver branch that Debian itself has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Distribution:
    """A Debian release. `suite` is its name in the archive; `branch` is the driver branch of its own packages."""

    name: str
    suite: str
    branch: str


DISTRIBUTIONS = {
    "debian12": Distribution("debian12", "bookworm", "535"),
    "debian13": Distribution("debian13", "trixie", "550"),
}
DEFAULT = "debian12"
COMPONENTS = "main contrib non-free non-free-firmware"
