"""A boot of something new finds no GPU on the PCI bus: of another kernel, kernel parameter or NVIDIA module than now.

lspci and nvidia-smi list no GPU; a boot of what ran before has them again.
"""

from __future__ import annotations

from lab.host.disk import Host
from lab.power import new_boot

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "no-gpus")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "")
