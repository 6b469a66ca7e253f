"""A GPU needs a reset: the driver could not recover from an error of a program.

nvidia-smi -q shows "Reset Required : Yes" or, from branch 565 on, "GPU Recovery Action : Reset"; the kernel log has Xid
154. nvidia-smi -r takes it away, and so does a reboot.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = True
LASTS: int | None = 0


def apply(host: Host, gpu: int) -> None:
    tamper.now(host, **tamper.of_gpu(gpu, recovery_action="Reset"))
    tamper.xid(host, gpu, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")


def heal(host: Host, gpu: int) -> None:
    tamper.now(host, **tamper.of_gpu(gpu, recovery_action=""))
