"""A GPU's memory has two uncorrectable and 117 corrected errors.

nvidia-smi counts them, volatile until the reboot and aggregate for ever; the kernel log has Xid 48. Healing takes the
errors out of both counters, which nothing does in life.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu", "ecc")
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.now(host, **tamper.of_gpu(gpu, ecc__vol__unc__dram=2, ecc__vol__corr__dram=117))
    tamper.remembers(host, **tamper.of_gpu(gpu, ecc__agg__unc__dram=2, ecc__agg__corr__dram=117))
    text = "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, "
    text += "subpartition 0."
    tamper.xid(host, gpu, 48, text)


def heal(host: Host, gpu: int) -> None:
    tamper.now(host, **tamper.of_gpu(gpu, ecc__vol__unc__dram="", ecc__vol__corr__dram=""))
    tamper.remembers(host, **tamper.of_gpu(gpu, ecc__agg__unc__dram="", ecc__agg__corr__dram=""))
