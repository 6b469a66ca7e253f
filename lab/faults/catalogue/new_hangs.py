"""A boot of something new hangs before systemd: of another kernel, kernel parameter or NVIDIA module than now.

ssh gets no connection, and nothing ends it but switching the host off and on; lab.heal does that.
"""

from __future__ import annotations

from lab.host.disk import Host
from lab.power import new_boot, switch

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "hang")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "")
    if switch.running(host.name) and (host.hw / "boot").is_file() and "Press F1" in (host.hw / "boot").read_text():
        switch.cut(host.name)
        switch.on(host)
