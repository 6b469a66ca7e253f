"""The simulated libnvidia-ml.so.1, called through pynvml as any program calls the real one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.simulators.cuda import build as cuda
from lab.simulators.nvml.bare import Bare, bare
from lab.simulators.nvml.build import build
from rigwright.core.errors import HostError

VERSION = "535.261.03"
pytestmark = pytest.mark.usefixtures("as_root")  # the driver lets only root set limits
PRELUDE = """
import sys
from pynvml import *
def gpu(index):
    return nvmlDeviceGetHandleByIndex(index)
def code(call, *args):
    try:
        call(*args)
    except NVMLError as error:
        return error.value
    return 0
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder that every user may read, because pytest's own is not readable for all."""
    with tempfile.TemporaryDirectory(prefix="rigwright-nvml.") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def servbadge(folder: Path) -> Bare:
    return bare("servbadge", VERSION, folder / "servbadge")


@pytest.fixture
def rig_3090(folder: Path) -> Bare:
    return bare("rig-3090", VERSION, folder / "rig-3090")


def start(driver: Bare, code: str, user: str | None = None) -> subprocess.Popen[str]:
    """Starts the program as root and then changes to `user`, because `user` may not have access to the interpreter."""
    become = f"import os, pwd; os.setgroups([]); os.setuid(pwd.getpwnam({user!r}).pw_uid)\n" if user else ""
    argv = [sys.executable, "-c", PRELUDE + become + code]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=driver.env(), cwd="/", text=True, stdin=pipe, stdout=pipe)


def ask(driver: Bare, code: str, user: str | None = None) -> str:
    """Runs a program that is one NVML client from init to shutdown, and returns its output."""
    process = start(driver, code, user)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.strip()


def limits(driver: Bare) -> str:
    """Returns the power limits of all GPUs in watts."""
    code = "print(*[nvmlDeviceGetPowerManagementLimit(gpu(i)) // 1000 for i in range(nvmlDeviceGetCount())])"
    return ask(driver, "nvmlInit()\n" + code)


def test_settings_are_roots_and_last_as_long_as_a_client(servbadge: Bare) -> None:
    calls = (
        "nvmlInit(); h = gpu(0)\n"
        "print(code(nvmlDeviceSetPersistenceMode, h, 1), code(nvmlDeviceSetPowerManagementLimit, h, 200000),\n"
        "      code(nvmlDeviceSetApplicationsClocks, h, 877, 1005), code(nvmlDeviceSetGpuLockedClocks, h, 210, 900),\n"
        "      code(nvmlDeviceSetEccMode, h, 0), code(nvmlDeviceResetApplicationsClocks, h))"
    )
    assert ask(servbadge, calls, user="nobody") == "4 4 4 4 4 4"
    assert limits(servbadge) == "300 300 300 300"
    holder = start(servbadge, "nvmlInit(); print('in', flush=True); sys.stdin.readline()", user="nobody")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "in\n"
    ask(servbadge, "nvmlInit(); nvmlDeviceSetPowerManagementLimit(gpu(0), 200000)")
    assert limits(servbadge) == "200 300 300 300"
    holder.communicate("\n", timeout=30)
    assert limits(servbadge) == "300 300 300 300"


def test_no_getter_of_pynvml_harms_the_caller(servbadge: Bare, rig_3090: Bare) -> None:
    every = (
        "import pynvml; nvmlInit(); h = gpu(0); names = [n for n in dir(pynvml) if n.startswith('nvmlDeviceGet')]\n"
        "answered = 0\n"
        "for name in names:\n"
        "    for args in ((h,), (h, 0), (h, 0, 0), (h, gpu(1)), (h, gpu(1), 0), (h, 0, 0, 0)):\n"
        "        try: getattr(pynvml, name)(*args); answered += 1\n"
        "        except Exception: pass\n"
        "print(answered)"
    )
    assert int(ask(servbadge, every)) > 90
    assert int(ask(rig_3090, every)) > 80


def test_only_versions_are_built(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no driver version"):
        build('535"', tmp_path, tmp_path)
    with pytest.raises(HostError, match="no version"):
        cuda.build("nccl", "2.21", tmp_path, tmp_path)


@pytest.fixture
def kernel(servbadge: Bare, folder: Path) -> Path:
    """Returns the files of a kernel with a loaded module that drives servbadge's GPUs, for the simulated library."""
    root = folder / "kernel"
    for bus in ("06", "07", "0a", "0b"):
        (root / f"devices/0000:{bus}:00.0/driver").mkdir(parents=True)
        (root / f"devices/0000:{bus}:00.0/config").write_bytes(b"\xde\x10\xb1\x1d")
    (root / "module").mkdir()
    (root / "version").write_text(
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Mon Jul 14 16:57:01 UTC 2025\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n"
    )
    servbadge.load_driver("none")
    board = servbadge.hardware / "board.conf"
    keys = {"driver.version_file": "version", "driver.module": "module", "bus.devices": "devices"}
    board.write_text(board.read_text() + "".join(f"{key}={root / name}\n" for key, name in keys.items()))
    return root


def test_a_real_kernel_says_which_driver_is_loaded_and_settings_end_with_it(servbadge: Bare, kernel: Path) -> None:
    ask(servbadge, "nvmlInit(); nvmlDeviceSetPersistenceMode(gpu(0), 1)")
    show, init = "nvmlInit(); print(nvmlDeviceGetPersistenceMode(gpu(0)))", "print(code(nvmlInit))"
    assert ask(servbadge, show) == "1"
    (kernel / "module").rename(kernel / "unloaded")
    (kernel / "module").mkdir()
    assert ask(servbadge, show) == "0"
    (kernel / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Tue\n")
    assert ask(servbadge, init) == "18", "a library of another version"
    (kernel / "version").unlink()
    assert ask(servbadge, init) == "9", "no driver"


def test_gpus_without_the_driver_are_absent_and_those_off_the_bus_lost(servbadge: Bare, kernel: Path) -> None:
    (kernel / "devices/0000:06:00.0/driver").rmdir()
    (kernel / "devices/0000:0a:00.0/config").write_bytes(b"\xff\xff\xff\xff")
    assert ask(servbadge, "nvmlInit(); print([code(gpu, index) for index in range(4)])") == "[0, 15, 0, 2]"
    config = str(kernel / "devices/0000:07:00.0/config")
    lose = f"open({config!r}, 'wb').write(bytes([255, 255]))"
    lost = ask(servbadge, f"nvmlInit(); one = gpu(0); {lose}; print(code(nvmlDeviceGetPowerUsage, one))")
    assert lost == "15", "also for a program that uses it"
