"""A boot of something new has the user's rule of sudo 25 seconds late, as from LDAP or SSSD: of another kernel, kernel
parameter or NVIDIA module than now.

Until then sudo -n says "a password is required"; a login works.
"""

from __future__ import annotations

from lab.host.disk import Host
from lab.power import new_boot

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "late-sudo")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    new_boot.remember(host, "")
