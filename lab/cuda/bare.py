"""The CUDA libraries beside a simulated driver that has no host around it (lab.nvml.bare)."""

from __future__ import annotations

from pathlib import Path

from lab.cuda.build import build
from lab.nvml.bare import CACHE, Bare

CUDART, CUBLAS = "12.2.140", "12.2.5.6"


def add_cuda(driver: Bare, version: str, nccl: str = "2.21.5+cuda12.4", cache: Path = CACHE) -> Bare:
    """What sees the driver's `env()` finds libcuda.so.1 of that version, libcudart.so.12, libcublas.so.12, libnccl.so.2."""
    for name, release in (("cuda", version), ("cudart", CUDART), ("cublas", CUBLAS), ("nccl", nccl)):
        build(name, release, driver.libraries, cache)
    return driver
