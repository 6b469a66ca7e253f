"""GRUB cannot write grubenv: it reads the disk, as on a RAID, and every save_env fails.

A next_entry is not cleared, so an entry that was chosen for one boot boots each time; in the running host nothing shows
it.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.remembers(host, boot__grubenv="read-only")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.remembers(host, boot__grubenv="")
