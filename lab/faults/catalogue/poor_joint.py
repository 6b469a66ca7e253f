"""The connection of the first power supply has 60 milliohms more, as a loose screw or a worn plug: the others carry its
share.

The rail's voltage is lower under load, and when all GPUs ramp together some fall off the bus, as with gpu-lost.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("rails",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.remembers(host, supply0__joint_uohm=60_000)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.remembers(host, supply0__joint_uohm="")
