"""The initramfs does not find the root file system in a boot of something new: another kernel, kernel parameter or
NVIDIA module than now.

ssh gets no connection. After 30 seconds the console says that the root file system does not exist; with panic=N on
the kernel command line the host then boots again after N seconds, without it the initramfs waits in a shell.
"""

from __future__ import annotations

from lab.host.disk import Host
from lab.power import new_boot

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "no-root")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "")
