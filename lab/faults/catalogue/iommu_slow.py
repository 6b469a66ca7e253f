"""While the IOMMU translates, what goes between GPUs over PCIe goes at a third of the speed; with iommu=pt on the
kernel command line it does not.

No program says so: copies between GPUs and NCCL are slower (as far as the lab simulates their speed).
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu", "several-gpus")
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.remembers(host, fault__iommu_slow=3)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.remembers(host, fault__iommu_slow="")
