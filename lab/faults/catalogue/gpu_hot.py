"""A GPU is not cooled well: under load it reaches its slowdown temperature and halves its clock, or more. Idle it is as
the others.

Under load nvidia-smi -q shows, after a minute or less, "HW Thermal Slowdown : Active" and a temperature above "GPU
Slowdown Temp".
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, temp__full=1000))


def heal(host: Host, gpu: int) -> None:
    tamper.remembers(host, **tamper.of_gpu(gpu, temp__full=""))
