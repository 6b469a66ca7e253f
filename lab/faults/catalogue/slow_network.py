"""The host's network carries no more than 100 megabits a second in each direction, as with a port that came up at a
lower rate.

ethtool and /sys/class/net/eth0/speed say 10 Gb/s as before; a measurement of the link does not.
"""

from __future__ import annotations

from lab.host import network
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = None
MBIT = 100


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    network.limit(host.name, MBIT)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    network.unlimit(host.name)
