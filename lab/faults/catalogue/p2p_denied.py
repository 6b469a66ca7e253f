"""The chipset denies a GPU the memory of all others, as some boards do.

nvidia-smi topo -p2p r says CNS for its pairs; CUDA programs and NCCL go through the host's memory.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.hardware.board import P2P_STATUS
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu", "several-gpus", "p2p")
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.remembers(host, **{f"p2p.{pair}": P2P_STATUS["CNS"] for _, pair in tamper.others(host, gpu)})


def heal(host: Host, gpu: int) -> None:
    tamper.remembers(host, **{f"p2p.{pair}": "" for _, pair in tamper.others(host, gpu)})
