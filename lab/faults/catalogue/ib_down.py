"""An InfiniBand adapter of the host has no link, as without a cable.

/sys/class/infiniband and ibstat say "DOWN" and "Polling".
"""

from __future__ import annotations

from lab.faults import tamper
from lab.hardware import infiniband
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("infiniband",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.adapters(host, infiniband.DOWN)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.adapters(host, "")
