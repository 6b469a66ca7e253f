"""The package rigwright-lab-nvml: stand-ins for libnvidia-ml, libcuda and nvidia-persistenced over a really loaded
module.

The GPUs of a virtual machine are devices without a processor: NVIDIA's module drives them and cannot start them. These
libraries say what the rig's GPUs would say. What is loaded and which devices it drives, they read from the kernel.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from lab.base.paths import CACHE
from lab.hardware.board import board_conf, model
from lab.hardware.rigfile import describe
from lab.simulators.cuda.build import build as build_cuda
from lab.simulators.nvml.build import build as build_nvml
from lab.vm import diversion

NAME = "rigwright-lab-nvml"
LIBRARIES = "/usr/lib/x86_64-linux-gnu/nvidia/current"
"""Where Debian's packages have the driver's libraries."""
DAEMON = "/usr/bin/nvidia-persistenced"
GUEST_GPU = Path(__file__).resolve().parents[1] / "simulators" / "guest_gpu"
KERNEL = {
    "driver.version_file": "/proc/driver/nvidia/version",
    "driver.module": "/sys/module/nvidia",
    "bus.devices": "/sys/bus/pci/devices",
}
"""The keys with which the libraries ask the guest's kernel (lab/simulators/nvml/kernel.c)."""


def nvml_package(rig: str, host: str, version: str, out: Path, cache: Path = CACHE) -> Path:
    """Builds the package for a rig and a driver version, such as 535.261.03, and returns its path in the folder `out`.

    Needs gcc.
    """
    with tempfile.TemporaryDirectory(prefix="rigwright-nvml-") as folder:
        work = Path(folder)
        nvml = build_nvml(version, work, cache)
        build_cuda("cuda", version, work, cache)
        cuda = work / f"libcuda.so.{version}"
        board = work / "board.conf"
        board.write_text(guest_board(rig, host), encoding="utf-8")
        daemon = work / "nvidia-persistenced"
        daemon.write_text(
            (GUEST_GPU / daemon.name).read_text(encoding="utf-8").replace("@V@", version), encoding="utf-8"
        )
        daemon.chmod(0o755)
        files = {
            f"{LIBRARIES}/{nvml.name}": nvml,
            f"{LIBRARIES}/{cuda.name}": cuda,
            DAEMON: daemon,
            "/usr/lib/rigwright-lab/board.conf": board,
            "/usr/lib/tmpfiles.d/rigwright-lab-nvml.conf": diversion.FILES / "nvml.tmpfiles",
        }
        over = (f"{LIBRARIES}/{nvml.name}", f"{LIBRARIES}/{cuda.name}", DAEMON)
        about = f"simulated libnvidia-ml, libcuda and nvidia-persistenced {version} for the GPUs of {rig}"
        return diversion.build(NAME, version, about, files, out, over=over, postinst="nvml.postinst")


def guest_board(rig: str, host: str) -> str:
    """Returns board.conf for a guest: the rig's GPUs, which have the same addresses there, and where its kernel tells
    of the driver."""
    described = describe(rig, host)
    models = {gpu["model"]: model(gpu["model"]) for gpu in described["gpus"]}
    return board_conf(described, models) + "".join(f"{key}={path}\n" for key, path in KERNEL.items())
