"""Drivers of every other branch than the loaded one hang: they grant GPUs each other's memory, and what goes directly
between them never ends.

The loaded driver grants the same and works. After a change of the driver copies between GPUs and NCCL hang, until the
old branch is back.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.faults.catalogue.peers_hang import loaded_branch, pairs_of
from lab.hardware.board import P2P_STATUS
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu", "several-gpus")
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    keys = {"p2p": P2P_STATUS["OK"], "fault.pair": f"hang@!{loaded_branch(host)}"}
    tamper.remembers(host, **{f"{key}.{pair}": value for pair in pairs_of(host) for key, value in keys.items()})


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.remembers(host, **{f"{key}.{pair}": "" for pair in pairs_of(host) for key in ("p2p", "fault.pair")})
