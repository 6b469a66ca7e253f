"""The first power supply is off: what hung on its rail hangs on the others, or has no power.

The rail's voltage is lower, and when all GPUs ramp together it falls so low that some fall off the bus, as with
gpu-lost.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("rails",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.remembers(host, supply0__out=1)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.remembers(host, supply0__out="")
