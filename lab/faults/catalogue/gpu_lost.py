"""A GPU falls off the bus, as with a bad riser or a weak power supply.

nvidia-smi ends with "Unable to determine the device handle for GPU...: GPU is lost"; one that was running goes on with
ERR! and "GPU is lost" in that GPU's row. The kernel log has Xid 79, lspci "Unknown header type 7f". A reboot brings the
GPU back.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = True
LASTS: int | None = 0


def apply(host: Host, gpu: int) -> None:
    if tamper.value(host, gpu, "fault.open"):
        return
    tamper.now(host, **tamper.of_gpu(gpu, fault=15, fault__open=15))
    tamper.fall_off(host, gpu, off=True)
    place = tamper.value(host, gpu, "bus_id").lower()
    tamper.xid(host, gpu, 79, "GPU has fallen off the bus.")
    tamper.says(host, f"NVRM: GPU {place}: GPU has fallen off the bus.")


def heal(host: Host, gpu: int) -> None:
    tamper.now(host, **tamper.of_gpu(gpu, fault="", fault__open=""))
    tamper.fall_off(host, gpu, off=False)
