"""The memory of a GPU is not cooled well, as with dried pads: under load it reaches its limit though the core is cool.

Where NVML reads the memory's temperature, nvidia-smi -q shows it at "Memory Max Operating Temp"; "SW Thermal Slowdown"
is active after a minute or less, and the clock falls.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu", "memory-limit")
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, temp__memory_full=160))


def heal(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, temp__memory_full=""))
