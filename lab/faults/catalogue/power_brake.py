"""The power supply asks a GPU to brake, as when a cable is missing or the supply is too weak.

nvidia-smi -q shows "HW Power Brake Slowdown : Active" and "HW Slowdown : Active"; the clock is halved.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, throttle="0x88"))


def heal(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, throttle=""))
