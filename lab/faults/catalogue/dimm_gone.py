"""A memory module is not found any more from the next boot on.

free and /proc/meminfo show less, dmidecode and lshw an empty place. Healed, the memory is there again after another
boot.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.hardware.rigfile import describe
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("rig",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    memory = describe(str(host.rig))["memory"]
    tamper.at_next_boot(host, "memory.gone_gib", str(memory["gib"] // memory["dimms"]))


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.at_next_boot(host, "memory.gone_gib", "")
