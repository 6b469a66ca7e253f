"""A boot of something new has no network: of another kernel, kernel parameter or NVIDIA module than now.

ssh gets no connection; in the host eth0 is down and has no address.
"""

from __future__ import annotations

from lab.host.disk import Host
from lab.power import new_boot

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "no-network")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "")
