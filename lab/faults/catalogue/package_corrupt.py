"""The packages of a driver arrive with other bytes than the archive's index tells of, as through a broken proxy.

apt-get says "Hash Sum mismatch"; nothing is installed.
"""

from __future__ import annotations

from lab.archive import server
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("rig",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    server.trouble(str(host.address), "corrupt")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    server.trouble(str(host.address), None)
