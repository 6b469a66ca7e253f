"""An InfiniBand adapter of the host runs with one lane of four, as with a damaged cable.

/sys/class/infiniband and ibstat say "ACTIVE", and a quarter of the rate, "1X EDR".
"""

from __future__ import annotations

from lab.faults import tamper
from lab.hardware import infiniband
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("infiniband",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.adapters(host, infiniband.SLOW)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.adapters(host, "")
