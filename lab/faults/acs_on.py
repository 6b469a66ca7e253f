"""ACS is switched on again on every bridge, as after a firmware update: it sends traffic between GPUs through the root complex.

lspci -vvv as root says "ACSCtl: SrcValid+ ... ReqRedir+"; setpci takes it back, the next boot has what boards come with.
"""

from __future__ import annotations

from lab import tamper
from lab.host import Host
from lab.pciconfig import ACS_ON

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = False
LASTS: int | None = 0


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.acs(host, ACS_ON)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.acs(host, 0)
