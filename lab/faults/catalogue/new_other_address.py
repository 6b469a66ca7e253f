"""A boot of something new has an address in another network: of another kernel, kernel parameter or NVIDIA module than
now.

Nobody answers at the address of before; in the host eth0 is up and has 198.51.100.7.
"""

from __future__ import annotations

from lab.host.disk import Host
from lab.power import new_boot

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "other-address")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "")
