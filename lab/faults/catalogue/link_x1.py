"""A GPU's link has trained to one lane, as on a mining riser.

lspci -vvv says "Width x1 (downgraded)" at the GPU, and its port has it too; nvidia-smi
--query-gpu=pcie.link.width.current says 1.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, pcie__width_now=1))
    tamper.retrain(host, gpu)


def heal(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, pcie__width_now=""))
    tamper.retrain(host, gpu)
