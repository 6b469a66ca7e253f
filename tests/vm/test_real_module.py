"""NVIDIA's real module and nvidia-smi in a virtual machine that starts from a recorded state; nothing is installed.

The GPUs have no processor: the module drives each of them, and none starts. Owners of a GPU with a damaged VBIOS see
the same.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from lab.base.paths import SSH_CONFIG
from lab.cli import commands
from lab.host import login
from lab.simulators.nvml.real_smi import nvidia_library, nvidia_smi
from lab.vm import machine
from rigwright.driver.start_failure import StartFailures
from tests.end_to_end import rw

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("as_root")]
NAME, RIG, VERSION = "t-vm-module", "servbadge", "535.261.03"
MODULE = f"/usr/lib/rigwright-lab/modules/nvidia-current/{VERSION}/$(uname -r)/nvidia.ko"


def asked(command: str, deadline: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs a command in the machine as its user."""
    made = machine.load(NAME)
    assert made is not None
    return login.ssh(made, command, deadline)


@pytest.fixture(scope="module")
def loaded() -> Iterator[str]:
    """Yields the kernel log of a machine after the real module was loaded and NVIDIA's nvidia-smi has asked for the
    GPUs."""
    commands.down(name=NAME, say=print)
    commands.up_vm(name=NAME, rig=RIG, warm=True, say=print)
    files = [str(nvidia_smi(VERSION)), str(nvidia_library(VERSION))]
    subprocess.run(["scp", "-q", "-F", str(SSH_CONFIG), *files, f"{NAME}:/tmp/"], check=True, timeout=120)
    inserted = asked(f"sudo insmod {MODULE}")
    assert inserted.returncode == 0, inserted.stderr
    asked(f"ln -s libnvidia-ml.so.{VERSION} /tmp/libnvidia-ml.so.1")
    asked("for n in 0 1 2 3; do sudo mknod -m 666 /dev/nvidia$n c 195 $n; done")
    asked("sudo mknod -m 666 /dev/nvidiactl c 195 255")
    yield asked("LD_LIBRARY_PATH=/tmp /tmp/nvidia-smi; echo exit $?; sudo dmesg").stdout
    commands.down(name=NAME, say=print)


def test_the_module_drives_every_gpu(loaded: str) -> None:  # noqa: ARG001
    assert asked("lspci -k -d 10de:").stdout.count("Kernel driver in use: nvidia") == 4
    assert f"Kernel Module  {VERSION}" in asked("cat /proc/driver/nvidia/version").stdout
    assert asked("cat /proc/driver/nvidia/gpus/*/information").stdout.count("Tesla V100-SXM2-16GB") == 4


def test_nvidias_own_nvidia_smi_finds_none_that_started(loaded: str) -> None:
    assert loaded.startswith("No devices were found\nexit 6\n")
    assert "RmInitAdapter failed!" in loaded
    assert "Failed to copy vbios to system memory." in loaded


def test_rigwright_quotes_the_module_for_each_gpu(loaded: str) -> None:
    gpus = set(re.findall(r"GPU (0000:\S+): RmInitAdapter failed!", loaded))
    failures = StartFailures(loaded.splitlines())
    assert len(gpus) == 4
    for at in gpus:
        failure = failures.of(at)
        assert failure
        assert failure.said.startswith("Failed to copy vbios to system memory; RmInitAdapter failed! (0x")
        assert failure.symptom == "gpu.init_vbios"


def test_rigwright_explains_what_the_module_says(loaded: str) -> None:
    words = next(line for line in loaded.splitlines() if "RmInitAdapter failed!" in line)
    explained = rw.invoke("explain", words)
    assert explained.returncode == 0
    assert "RmInitAdapter" in explained.stdout
