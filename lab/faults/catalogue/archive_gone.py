"""The package archives answer "404 Not Found" to this host, as a mirror does that has dropped a release.

apt-get update says "no longer has a Release file"; what is installed stays as it is.
"""

from __future__ import annotations

from lab.archive import server
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("rig",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    server.trouble(str(host.address), "gone")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    server.trouble(str(host.address), None)
