"""A bad page of a GPU's memory waits to be taken out of use: a retired page up to Turing, a remapped row from Ampere
on.

nvidia-smi -q shows "Pending Page Blacklist : Yes" or, from Ampere on, "Pending : Yes"; the kernel log has Xid 63.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu", "ecc")
ONE_GPU = True
LASTS: int | None = None


AMPERE = 7


def apply(host: Host, gpu: int) -> None:
    if int(tamper.value(host, gpu, "arch", "0")) >= AMPERE:
        tamper.remembers(host, **tamper.of_gpu(gpu, remap__uncorrected=1, remap__pending=1))
        text = "Row Remapper: New row (0x00000000000012ab) marked for remapping, reset gpu to activate."
    else:
        tamper.remembers(host, **tamper.of_gpu(gpu, retired__double="0x12ab", retired__pending=1))
        text = "Dynamic Page Retirement: New page retired, reboot to activate (0x00000000000012ab)."
    tamper.xid(host, gpu, 63, text)


def heal(host: Host, gpu: int) -> None:
    gone = dict.fromkeys(("remap__uncorrected", "remap__pending", "retired__double", "retired__pending"), "")
    tamper.remembers(host, **tamper.of_gpu(gpu, **gone))
