"""Packages that somebody put on hold with apt-mark, and that apt has to change."""

from __future__ import annotations

from collections.abc import Sequence

from rigwright.core.errors import HostError


def held_back(where: str, held: Sequence[str], consequence: str) -> HostError:
    """The error for packages that somebody put on hold, which keeps apt from what rigwright needs."""
    verb = "is" if len(held) == 1 else "are"
    return HostError(
        where,
        f"{', '.join(held)} {verb} held (apt-mark hold): {consequence}",
        "packages that apt may install or change",
        f"sudo apt-mark unhold {' '.join(held)}, on the host; then run the same command again",
    )
