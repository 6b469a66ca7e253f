"""The first NVLink of a GPU is down, as with a badly seated module or bridge.

nvidia-smi nvlink -s says "Link 0: <inactive>", topo -m has one link fewer for the pair; the kernel log has Xid 74.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu", "nvlink")
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, link0__state=0))
    tamper.xid(host, gpu, 74, "NVLink: fatal error detected on link 0(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")


def heal(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, link0__state=""))
