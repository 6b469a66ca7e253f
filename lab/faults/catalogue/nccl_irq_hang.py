"""NCCL's first collective never ends, as when interrupts of one GPU are lost.

A program that uses NCCL hangs at 100 % utilisation; nothing stands in the kernel log (as far as the lab simulates
NCCL).
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu", "several-gpus")
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.remembers(host, nccl__irq_hang=1)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.remembers(host, nccl__irq_hang="")
