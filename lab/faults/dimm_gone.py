"""A memory module is not found any more: from the next boot on the host has an eighth less memory.

free and /proc/meminfo show less. Healed, the memory is there again after another boot.
"""

from __future__ import annotations

from lab import tamper
from lab.host import Host
from lab.rig import describe

NEEDS: tuple[str, ...] = ("rig",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.at_next_boot(host, "memory.gone_gib", str(max(describe(str(host.rig))["memory_gib"] // 8, 1)))


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.at_next_boot(host, "memory.gone_gib", "")
