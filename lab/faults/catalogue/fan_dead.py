"""A GPU's fans, or the machine's in front of it, stand still: a quarter of its heat is carried away.

nvidia-smi shows "0%" for a GPU with fans of its own; ipmitool shows 0 RPM for the others. It is hotter than its peers,
and under load "SW Thermal Slowdown" or "HW Thermal Slowdown" is active after a minute or less.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, fan_speed=0))


def heal(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, fan_speed=""))
