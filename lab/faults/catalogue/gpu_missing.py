"""A GPU is pulled out: from the next boot on it is not there.

lspci and nvidia-smi -L have one GPU fewer, its slot's port says "Width x0". Healed, it is there again after another
boot.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.at_next_boot(host, f"gpu{gpu}.absent", "1")


def heal(host: Host, gpu: int) -> None:
    tamper.at_next_boot(host, f"gpu{gpu}.absent", "")
