"""The package archives go away while a driver is downloaded: four of its packages arrive, the fifth breaks off, then
nothing.

apt-get says "Connection failed" and "404  Not Found"; apt-get update says "no longer has a Release file". Nothing was
installed.
"""

from __future__ import annotations

from lab.archive import server
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("rig",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    server.trouble(str(host.address), "half")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    server.trouble(str(host.address), None)
