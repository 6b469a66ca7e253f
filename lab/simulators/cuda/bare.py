"""The simulated CUDA libraries for a simulated driver without a host (lab.simulators.nvml.bare)."""

from __future__ import annotations

from pathlib import Path

from lab.simulators.cuda.build import build
from lab.simulators.nvml.bare import CACHE, Bare

CUDART, CUBLAS = "12.2.140", "12.2.5.6"


def add_cuda(driver: Bare, version: str, nccl: str = "2.21.5+cuda12.4", cache: Path = CACHE) -> Bare:
    """Adds libcuda.so.1 of that version, libcudart.so.12, libcublas.so.12 and libnccl.so.2 to the driver's libraries.

    Programs that run with the driver's `env()` find them. Returns `driver`. Needs gcc.
    """
    for name, release in (("cuda", version), ("cudart", CUDART), ("cublas", CUBLAS), ("nccl", nccl)):
        build(name, release, driver.libraries, cache)
    return driver
