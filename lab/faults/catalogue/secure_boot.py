"""Secure Boot is switched on in the firmware: from the next boot on the kernel takes no module that DKMS has built.

modprobe says "Key was rejected by service", nvidia-smi that it couldn't communicate with the driver; the kernel log
says "Secure boot enabled", and efivars has the variable. Healed, it is off after another boot.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.at_next_boot(host, "secure_boot", "1")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.at_next_boot(host, "secure_boot", "")
