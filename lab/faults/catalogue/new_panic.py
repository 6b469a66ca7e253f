"""The kernel panics in every boot of something new: another kernel, kernel parameter or NVIDIA module than now.

ssh gets no connection. With panic=N on the kernel command line the host boots again after N seconds, without it
never; the console has the panic.
"""

from __future__ import annotations

from lab.host.disk import Host
from lab.power import new_boot

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "panic")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "")
