"""A boot of something new ends in an emergency shell: of another kernel, kernel parameter or NVIDIA module than now.

ssh gets no connection: systemd starts emergency.target, in which nothing runs but a shell on the console.
"""

from __future__ import annotations

from lab.host.disk import Host
from lab.power import new_boot

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "emergency")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "")
