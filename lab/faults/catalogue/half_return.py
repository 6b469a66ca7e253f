"""The next boot does not find one of the GPUs; the boot after that does.

After the reboot lspci and nvidia-smi -L have one GPU fewer than before it.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = True
LASTS: int | None = 1


def apply(host: Host, gpu: int) -> None:
    tamper.remembers(host, **{f"once.gpu{gpu}.absent": 1})


def heal(host: Host, gpu: int) -> None:
    tamper.remembers(host, **{f"once.gpu{gpu}.absent": ""})
