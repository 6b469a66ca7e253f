"""The simulated libnvidia-ml.so.1, called through pynvml as any program calls the real one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.simulators.nvml.bare import Bare, bare
from lab.simulators.nvml.build import build, exported
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


def limits(driver: Bare, user: str | None = None) -> str:
    """Returns the power limits of all GPUs in watts."""
    return ask(
        driver,
        "nvmlInit()\nprint(*[nvmlDeviceGetPowerManagementLimit(gpu(i)) // 1000 for i in range(nvmlDeviceGetCount())])",
        user,
    )


def test_init_needs_the_driver_and_every_other_call_needs_init(servbadge: Bare) -> None:
    assert ask(servbadge, "print(code(nvmlDeviceGetCount))") == "1"
    assert ask(servbadge, "nvmlInit(); nvmlInit(); nvmlShutdown(); print(nvmlDeviceGetCount())") == "4"
    assert ask(servbadge, "nvmlInit(); nvmlShutdown(); print(code(nvmlDeviceGetCount))") == "1"
    servbadge.load_driver("550.163.01")
    assert ask(servbadge, "print(code(nvmlInit), nvmlSystemGetNVMLVersion())") == "18 12.535.261.03"
    servbadge.load_driver("none")
    assert ask(servbadge, "print(code(nvmlInit))") == "9"
    servbadge.cut_power()
    assert ask(servbadge, "print(code(nvmlInit))") == "9"


def test_setters_refuse_an_ordinary_user(servbadge: Bare) -> None:
    calls = (
        "nvmlInit(); h = gpu(0)\n"
        "print(code(nvmlDeviceSetPersistenceMode, h, 1), code(nvmlDeviceSetPowerManagementLimit, h, 200000),\n"
        "      code(nvmlDeviceSetApplicationsClocks, h, 877, 1005), code(nvmlDeviceSetGpuLockedClocks, h, 210, 900),\n"
        "      code(nvmlDeviceSetEccMode, h, 0), code(nvmlDeviceResetApplicationsClocks, h))"
    )
    assert ask(servbadge, calls, user="nobody") == "4 4 4 4 4 4"
    assert limits(servbadge, user="nobody") == "300 300 300 300"


def test_a_setting_ends_with_the_last_client_unless_persistence_is_on(servbadge: Bare) -> None:
    both = "nvmlInit()\nfor i in (0, 1): nvmlDeviceSetPowerManagementLimit(gpu(i), 200000)"
    ask(servbadge, "nvmlInit(); nvmlDeviceSetPersistenceMode(gpu(1), 1)")
    ask(servbadge, both)
    assert limits(servbadge) == "300 200 300 300"
    ask(servbadge, "nvmlInit(); nvmlDeviceSetPersistenceMode(gpu(1), 0)")
    assert limits(servbadge) == "300 300 300 300"


def test_another_client_keeps_a_setting_alive(servbadge: Bare) -> None:
    holder = start(servbadge, "nvmlInit(); print('in', flush=True); sys.stdin.readline()", user="nobody")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "in\n"
    ask(servbadge, "nvmlInit(); nvmlDeviceSetPowerManagementLimit(gpu(0), 200000)")
    assert limits(servbadge) == "200 300 300 300"
    holder.communicate("\n", timeout=30)
    assert limits(servbadge) == "300 300 300 300"


def test_an_ordinary_user_is_not_shown_what_the_driver_forgot(servbadge: Bare) -> None:
    ask(servbadge, "nvmlInit(); nvmlDeviceSetPowerManagementLimit(gpu(0), 200000)")
    assert limits(servbadge, user="nobody") == "300 300 300 300"
    (servbadge.hardware / "volatile/clients").chmod(0o644)
    ask(servbadge, "nvmlInit(); nvmlDeviceSetPowerManagementLimit(gpu(0), 200000)")
    assert limits(servbadge, user="nobody") == "300 300 300 300"


def test_loading_the_driver_anew_forgets_all_settings(servbadge: Bare) -> None:
    ask(servbadge, "nvmlInit(); nvmlDeviceSetPersistenceMode(gpu(0), 1)")
    ask(servbadge, "nvmlInit(); nvmlDeviceSetPowerManagementLimit(gpu(0), 200000)")
    assert limits(servbadge) == "200 300 300 300"
    servbadge.load_driver("none")
    servbadge.load_driver(VERSION)
    assert ask(servbadge, "nvmlInit(); print(nvmlDeviceGetPersistenceMode(gpu(0)))") == "0"
    assert limits(servbadge) == "300 300 300 300"


def test_a_v100_takes_only_listed_pairs_of_clocks(servbadge: Bare) -> None:
    calls = (
        "nvmlInit(); h = gpu(0); nvmlDeviceSetPersistenceMode(h, 1)\n"
        "pairs = (877, 1001), (810, 1005), (877, 1005)\n"
        "print(*[code(nvmlDeviceSetApplicationsClocks, h, *pair) for pair in pairs],\n"
        "      nvmlDeviceGetApplicationsClock(h, 0), nvmlDeviceGetDefaultApplicationsClock(h, 0),\n"
        "      code(nvmlDeviceSetGpuLockedClocks, h, 210, 900), code(nvmlDeviceSetMemoryLockedClocks, h, 877, 877))\n"
        "clocks = nvmlDeviceGetSupportedGraphicsClocks(h, 877)\n"
        "print(nvmlDeviceGetSupportedMemoryClocks(h), clocks[:4], clocks[-1])"
    )
    assert ask(servbadge, calls).splitlines() == ["2 2 0 1005 1312 0 3", "[877] [1530, 1522, 1515, 1507] 135"]


def test_a_3090_has_no_application_clocks_but_locks_both(rig_3090: Bare) -> None:
    calls = (
        "nvmlInit(); h = gpu(0)\n"
        "print(code(nvmlDeviceSetApplicationsClocks, h, 9751, 1500), code(nvmlDeviceGetApplicationsClock, h, 0),\n"
        "      code(nvmlDeviceSetGpuLockedClocks, h, 210, 1400), code(nvmlDeviceSetMemoryLockedClocks, h, 405, 5001),\n"
        "      len(nvmlDeviceGetSupportedGraphicsClocks(h, 405)), code(nvmlDeviceGetSerial, h),\n"
        "      code(nvmlDeviceGetEccMode, h))"
    )
    assert ask(rig_3090, calls) == "3 3 0 0 15 3 3"


def test_each_3090_has_its_makers_power_bounds(rig_3090: Bare) -> None:
    ranges = ask(
        rig_3090, "nvmlInit(); print(*[nvmlDeviceGetPowerManagementLimitConstraints(gpu(i)) for i in range(3)])"
    )
    assert ranges == "[100000, 350000] [100000, 375000] [100000, 480000]"
    set_all = "nvmlInit(); print(*[code(nvmlDeviceSetPowerManagementLimit, gpu(i), 375000) for i in range(3)])"
    assert ask(rig_3090, set_all) == "2 0 0"


def test_sixteen_setters_at_once_lose_no_update(servbadge: Bare) -> None:
    ask(servbadge, "nvmlInit()\nfor i in range(4): nvmlDeviceSetPersistenceMode(gpu(i), 1)")
    each = (
        "nvmlInit()\n"
        "for step in range(6):\n"
        "    if {kind} == 0: nvmlDeviceSetPowerManagementLimit(gpu({gpu}), 150000 + 1000 * step)\n"
        "    if {kind} == 1: nvmlDeviceSetApplicationsClocks(gpu({gpu}), 877, 1005 - 30 * step)\n"
        "    if {kind} == 2: nvmlDeviceSetGpuLockedClocks(gpu({gpu}), 135, 900 + step)\n"
        "    if {kind} == 3: nvmlDeviceSetComputeMode(gpu({gpu}), 3 if step % 2 else 2)"
    )
    processes = [start(servbadge, each.format(kind=kind, gpu=gpu)) for kind in range(4) for gpu in range(4)]
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0] * 16
    settings = {"power_limit_mw": "155000", "application_graphics_mhz": "855", "locked_graphics_max": "905"}
    settings |= {"compute_mode": "3", "persistence": "1"}
    assert {f"gpu{gpu}.set.{key}": value for gpu in range(4) for key, value in settings.items()}.items() <= (
        servbadge.kept().items()
    )


def test_a_power_cut_takes_settings_and_leaves_what_the_gpu_remembers(servbadge: Bare) -> None:
    ask(
        servbadge,
        "nvmlInit(); h = gpu(0); nvmlDeviceSetPersistenceMode(h, 1); nvmlDeviceSetPowerManagementLimit(h, 200000)\n"
        "nvmlDeviceSetEccMode(h, 0)",
    )
    with (servbadge.hardware / "nvram/nvram").open("a") as nvram:
        nvram.write("gpu0.ecc.agg.unc.dram=3\ngpu0.retired.double=0x1a2b000,0x3c4d000\n")
    ecc = "nvmlInit(); print(nvmlDeviceGetEccMode(gpu(0)))"
    assert ask(servbadge, ecc) == "[1, 0]"
    servbadge.cut_power()
    servbadge.load_driver(VERSION)
    assert limits(servbadge) == "300 300 300 300"
    assert ask(servbadge, ecc) == "[0, 0]"
    pages = "nvmlInit(); print([hex(page) for page in nvmlDeviceGetRetiredPages(gpu(0), 1)])"
    assert ask(servbadge, pages) == "['0x1a2b000', '0x3c4d000']"


def test_links_and_grants_follow_the_rig(servbadge: Bare, rig_3090: Bare) -> None:
    grants = (
        "nvmlInit(); a, b, c = gpu(0), gpu(1), gpu(2)\n"
        "print(nvmlDeviceGetTopologyCommonAncestor(a, b), nvmlDeviceGetTopologyCommonAncestor(a, c),\n"
        "      *[nvmlDeviceGetP2PStatus(a, b, index) for index in range(5)])"
    )
    assert ask(servbadge, grants) == "10 30 0 0 0 0 0"
    peers = "nvmlInit(); print(*[nvmlDeviceGetNvLinkRemotePciInfo(gpu(1), link).bus for link in range(6)])"
    assert ask(servbadge, peers) == "6 6 10 10 11 11"
    servbadge.put(gpu1__link3__state=0)
    state = "nvmlInit(); print(*[nvmlDeviceGetNvLinkState(gpu({}), link) for link in range(6)])"
    assert ask(servbadge, state.format(1)) == "1 1 1 0 1 1"
    assert ask(servbadge, state.format(2)) == "1 1 1 0 1 1"
    assert ask(rig_3090, grants) == "30 40 1 1 5 5 1"


def test_load_shows_in_power_clocks_and_reasons(servbadge: Bare) -> None:
    read = (
        "nvmlInit(); h = gpu(0)\n"
        "print(nvmlDeviceGetUtilizationRates(h).gpu, nvmlDeviceGetClockInfo(h, NVML_CLOCK_SM),\n"
        "      nvmlDeviceGetPowerUsage(h) // 1000, nvmlDeviceGetCurrentClocksThrottleReasons(h))"
    )
    assert ask(servbadge, read) == "0 135 40 1"
    servbadge.put(gpu0__load=100)
    servbadge.pass_time(10)
    use, full_clock, watts, reasons = map(int, ask(servbadge, read).split())
    assert (use, reasons) == (100, 4)
    assert 295 <= watts <= 300
    ask(servbadge, "nvmlInit(); nvmlDeviceSetPersistenceMode(gpu(0), 1)")
    ask(servbadge, "nvmlInit(); nvmlDeviceSetPowerManagementLimit(gpu(0), 180000)")
    servbadge.pass_time(10)
    use, clock, watts, reasons = map(int, ask(servbadge, read).split())
    assert (use, reasons) == (100, 4)
    assert clock < 0.85 * full_clock
    assert watts <= 180
    ask(servbadge, "nvmlInit(); nvmlDeviceSetApplicationsClocks(gpu(0), 877, 1005)")
    servbadge.pass_time(10)
    use, clock, watts, reasons = map(int, ask(servbadge, read).split())
    assert (clock, reasons) == (1005, 2)
    servbadge.put(gpu0__throttle="0x88")
    servbadge.pass_time(1)
    assert int(ask(servbadge, read).split()[1]) == clock // 2


def test_a_gpu_heats_up_over_minutes_and_its_fans_cool_it(rig_3090: Bare) -> None:
    read = "nvmlInit(); h = gpu(0); joules = nvmlDeviceGetTotalEnergyConsumption(h) // 1000\n"
    read += "print(nvmlDeviceGetTemperature(h, 0), nvmlDeviceGetFanSpeed(h), joules)"
    idle, _, before_j = map(int, ask(rig_3090, read).split())
    rig_3090.put(gpu0__load=100)
    rig_3090.pass_time(40)
    assert idle < int(ask(rig_3090, read).split()[0]) < 60
    rig_3090.pass_time(680)
    hot, fan, used_j = map(int, ask(rig_3090, read).split())
    assert hot == 70
    assert used_j - before_j == pytest.approx(350 * 720, rel=0.02)
    ask(rig_3090, "nvmlInit(); nvmlDeviceSetPersistenceMode(gpu(0), 1); nvmlDeviceSetFanSpeed_v2(gpu(0), 0, 100)")
    rig_3090.pass_time(600)
    cooler, full_fan, _ = map(int, ask(rig_3090, read).split())
    assert (cooler < hot - 5, fan < full_fan, full_fan) == (True, True, 100)
    ask(rig_3090, "nvmlInit(); nvmlDeviceSetDefaultFanSpeed_v2(gpu(0), 0)")
    rig_3090.pass_time(600)
    assert int(ask(rig_3090, read).split()[0]) == hot
    rig_3090.put(heat__speed=60, gpu0__load="")
    rig_3090.pass_time(10)
    assert int(ask(rig_3090, read).split()[0]) < idle + 2


def test_a_geforce_shows_the_average_of_a_second_and_a_v100_each_moment(servbadge: Bare, rig_3090: Bare) -> None:
    read = (
        "import time\nnvmlInit(); h = gpu(0); nvmlDeviceGetPowerUsage(h); open({!r}, 'a').write('gpu0.load=100\\n')\n"
        "time.sleep(0.35)\n"
        "usage, values = nvmlDeviceGetPowerUsage(h), nvmlDeviceGetFieldValues(h, [186])\n"
        "print(usage // 1000, values[0].value.uiVal // 1000)"
    )
    shown, moment = map(int, ask(servbadge, read.format(str(servbadge.hardware / "volatile/state"))).split())
    assert abs(shown - moment) < 40
    assert shown > 280
    shown, moment = map(int, ask(rig_3090, read.format(str(rig_3090.hardware / "volatile/state"))).split())
    assert 40 < shown < moment - 40


def test_faults_of_one_gpu_and_of_one_call(servbadge: Bare) -> None:
    read = (
        "nvmlInit(); print(*[code(lambda: nvmlDeviceGetTemperature(gpu(i), 0)) for i in range(nvmlDeviceGetCount())])"
    )
    servbadge.put(gpu1__fault__open=15, gpu2__fault=15, gpu3__fault__call__nvmlDeviceGetTemperature=999)
    assert ask(servbadge, read) == "0 15 15 999"
    servbadge.put(fault__call__nvmlInitWithFlags=15)
    assert ask(servbadge, "print(code(nvmlInit))") == "15"
    servbadge.put(fault__call__nvmlInitWithFlags="", gpu0__absent=1)
    assert ask(servbadge, read) == "15 15 999"


def test_an_xid_reaches_who_waits_for_it(servbadge: Bare) -> None:
    watcher = start(
        servbadge,
        "nvmlInit(); events = nvmlEventSetCreate()\n"
        "nvmlDeviceRegisterEvents(gpu(2), nvmlEventTypeXidCriticalError, events); print('in', flush=True)\n"
        "data = nvmlEventSetWait_v2(events, 20000)\n"
        "print(data.eventType, data.eventData, nvmlDeviceGetIndex(data.device))",
    )
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == "in\n"
    servbadge.put(gpu2__xid__last=79, gpu2__xid__count=1)
    assert watcher.communicate(timeout=30)[0] == "8 79 2\n"


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


def test_a_function_of_a_newer_driver_is_not_there_and_only_versions_are_built(servbadge: Bare, tmp_path: Path) -> None:
    assert ask(servbadge, "nvmlInit(); print(code(nvmlDeviceGetNumaNodeId, gpu(0)))") == "13"
    assert "nvmlDeviceGetNumaNodeId" in exported("550.163.01")
    with pytest.raises(HostError, match="no driver version"):
        build('535"', tmp_path, tmp_path)


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
