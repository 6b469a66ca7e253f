"""A GPU computes at seven tenths of the speed that its clock promises, as one with a worn chip or a wrong VBIOS.

No program says so: clocks, watts and degrees are as those of its peers. A measurement of its products does.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, speed_percent=70))


def heal(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, speed_percent=""))
