"""A GPU's link has trained to the slowest speed and stays there, also under load.

lspci -vvv says "Speed 2.5GT/s (downgraded)"; nvidia-smi --query-gpu=pcie.link.gen.current says 1.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, pcie__gen_now=1))
    tamper.retrain(host, gpu)


def heal(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, pcie__gen_now=""))
    tamper.retrain(host, gpu)
