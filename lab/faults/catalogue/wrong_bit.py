"""A GPU computes wrongly now and then: of every hundredth product of a program on it one bit is wrong.

No program says so, and no counter: the results of its products differ from those of its peers.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, wrong_bit=100))


def heal(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, wrong_bit=""))
