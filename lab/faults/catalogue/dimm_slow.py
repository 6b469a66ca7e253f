"""The firmware has set all memory modules to four fifths of the speed that they are made for, from the next boot on.

dmidecode -t memory says a lower "Configured Memory Speed" than "Speed". Healed, the speed is right after another boot.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.hardware.rigfile import describe
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("rig",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    rated = describe(str(host.rig))["memory"]["rated_mt_s"]
    tamper.at_next_boot(host, "memory.speed_mt_s", str(rated * 4 // 5))


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.at_next_boot(host, "memory.speed_mt_s", "")
