"""The archive's index names packages of a driver that are not there, as on a mirror between two synchronisations.

apt-get update is content; apt-get install says "404  Not Found".
"""

from __future__ import annotations

from lab.archive import server
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("rig",)
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    server.trouble(str(host.address), "behind")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    server.trouble(str(host.address), None)
