"""The simulated CUDA and NCCL libraries, called through ctypes as scripts/nccl_p2p.py calls the real ones."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.hardware.rigfile import describe
from lab.simulators.cuda.bare import add_cuda
from lab.simulators.cuda.build import build
from lab.simulators.nvml.bare import CACHE, Bare, bare
from rigwright.core.errors import HostError
from tests.onhost.conftest import restored

VERSION = "535.261.03"
PRELUDE = (Path(__file__).parent / "cuda_prelude.py").read_text()


@pytest.fixture(scope="module")
def rigs() -> Iterator[dict[str, Bare]]:
    """Yields a rig with NVLinks and one with PCIe only; tests remove the keys that they set."""
    with tempfile.TemporaryDirectory(prefix="rigwright-cuda.") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield {rig: add_cuda(bare(rig, VERSION, folder / rig), VERSION) for rig in ("servbadge", "rig-3090")}


@pytest.fixture
def servbadge(rigs: dict[str, Bare]) -> Iterator[Bare]:
    yield from restored(rigs["servbadge"])


@pytest.fixture
def rig_3090(rigs: dict[str, Bare]) -> Iterator[Bare]:
    yield from restored(rigs["rig-3090"])


def start(driver: Bare, code: str, **env: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", PRELUDE + code]
    return subprocess.Popen(argv, env={**driver.env(), **env}, cwd="/", text=True, stdin=pipe, stdout=pipe)


def begun(driver: Bare, code: str) -> subprocess.Popen[str]:
    """Starts a program, and waits until it says "in"."""
    process = start(driver, code)
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    return process


def ask(driver: Bare, code: str, **env: str) -> Any:
    """Returns the last line of the program's output as JSON; NCCL's own lines come before it."""
    return run(driver, code, **env)[1]


def run(driver: Bare, code: str, **env: str) -> tuple[str, Any]:
    """Returns the output before the last line, and the last line as JSON."""
    process = start(driver, code, **env)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, out
    before, _, last = out.strip().rpartition("\n")
    return before, json.loads(last)


def assert_hangs(driver: Bare, code: str) -> None:
    """Asserts that the program does not end after its first line, and kills it."""
    process = begun(driver, code)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.7)
    process.kill()
    process.communicate()


def near(seen: float, wanted: float) -> bool:
    return abs(seen / wanted - 1) < 0.2


# A working driver, and four broken ones


def test_a_context_and_what_it_sees(servbadge: Bare) -> None:
    code = (
        "ok(cu.cuInit(0)); text = C.create_string_buffer(64); ok(cu.cuDeviceGetName(text, 64, 1)); name = text.value\n"
        "ok(cu.cuDeviceGetPCIBusId(text, 64, 2)); uuid = C.create_string_buffer(16)\n"
        "ok(cu.cuDeviceGetUuid_v2(uuid, 3)); free, total = S(), S()\n"
        "context = V(); ok(cu.cuDevicePrimaryCtxRetain(C.byref(context), 0)); ok(cu.cuCtxSetCurrent(context))\n"
        "ok(cu.cuMemGetInfo_v2(C.byref(free), C.byref(total)))\n"
        "say([name.decode(), text.value.decode(), uuid.raw.hex(), integer(cu.cuDriverGetVersion), total.value >> 20,\n"
        "     (total.value - free.value) >> 20, integer(rt.cudaRuntimeGetVersion), integer(rt.cudaGetDeviceCount)])"
    )
    uuid = describe("servbadge")["gpus"][3]["uuid"].removeprefix("GPU-").replace("-", "")
    assert ask(servbadge, code) == ["Tesla V100-SXM2-16GB", "0000:0A:00.0", uuid, 12020, 16159, 300, 12020, 4]


@pytest.mark.parametrize(
    ("keys", "code", "name"),
    [
        ({"driver__loaded": "none"}, 100, "CUDA_ERROR_NO_DEVICE"),
        ({"driver__loaded": "535.183.01"}, 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        ({"nvswitches": 6}, 802, "CUDA_ERROR_SYSTEM_NOT_READY"),
        ({"fault__cuda__init": 999}, 999, "CUDA_ERROR_UNKNOWN"),
        ({f"gpu{n}__absent": 1 for n in range(4)}, 100, "CUDA_ERROR_NO_DEVICE"),
    ],
)
def test_a_driver_that_does_not_work(servbadge: Bare, keys: dict[str, object], code: int, name: str) -> None:
    servbadge.put(**keys)
    asked = "count = rt.cudaGetDeviceCount(C.byref(Int())); nccl = nc.ncclCommInitAll((V*1)(), 1, None)\n"
    assert ask(servbadge, asked + "say([cu.cuInit(0), error_name(cu.cuInit(0)), count, nccl])") == [code, name, code, 1]
    if code == 802:
        with (servbadge.hardware / "volatile/fabric").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert ask(servbadge, "say(cu.cuInit(0))") == 0, "the fabric manager makes NVSwitches ready"


def test_without_libcuda_the_runtime_says_insufficient(servbadge: Bare, tmp_path: Path) -> None:
    build("cudart", "12.2.140", tmp_path, CACHE)
    code = "import ctypes; print(ctypes.CDLL('libcudart.so.12').cudaGetDeviceCount(ctypes.byref(ctypes.c_int())))"
    argv, env = [sys.executable, "-c", code], {**servbadge.env(), "LD_LIBRARY_PATH": str(tmp_path)}
    assert subprocess.run(argv, env=env, text=True, capture_output=True, timeout=30, check=True).stdout == "35\n"


def test_visible_devices_choose_and_order(servbadge: Bare) -> None:
    code = "failed = rt.cudaGetDeviceCount(C.byref(Int()))\n"
    code += "say(0 if failed else [bus_id(device) for device in range(integer(rt.cudaGetDeviceCount))])"
    assert ask(servbadge, code, CUDA_VISIBLE_DEVICES="3,1") == ["0000:0B:00.0", "0000:07:00.0"]
    assert ask(servbadge, code, CUDA_VISIBLE_DEVICES="2,9,1") == ["0000:0A:00.0"]
    assert ask(servbadge, code, CUDA_VISIBLE_DEVICES=describe("servbadge")["gpus"][1]["uuid"]) == ["0000:07:00.0"]
    assert ask(servbadge, code, CUDA_VISIBLE_DEVICES="-1") == 0


def test_a_lost_gpu_before_and_within_a_context(servbadge: Bare) -> None:
    servbadge.put(gpu1__fault=15)
    assert ask(servbadge, "say([rt.cudaSetDevice(0), rt.cudaSetDevice(1)])") == [0, 999]
    servbadge.put(gpu1__fault="", gpu2__fault__open=15)
    assert ask(servbadge, "say(integer(rt.cudaGetDeviceCount))") == 3
    servbadge.put(gpu2__fault__open="")
    process = begun(servbadge, "g = gpu(1); print('in', flush=True); input(); say(rt.cudaDeviceSynchronize())")
    servbadge.put(gpu1__fault=15)
    assert process.communicate("\n", timeout=20)[0] == "719\n"


# Copied data


def test_copies_take_the_time_of_their_way_and_carry_their_bytes(servbadge: Bare) -> None:
    seen = ask(servbadge, "say(matrix(4))")
    assert all(near(gb_s, 48) for gb_s in seen["on"]), seen
    assert all(near(gb_s, 15.76 / 2) for gb_s in seen["off"]), seen
    assert near(seen["up"], 12.6)
    assert seen["right"]


def test_rates_come_from_links_overrides_and_faults(servbadge: Bare) -> None:
    servbadge.put(gpu0__link0__state=0, **{"bandwidth.0-2": 30, "fault.pair.1-2": "slow:4", "latency_us.0-3": 500})
    seen = ask(servbadge, "say([p2p(0, 1), p2p(0, 2), p2p(1, 2), p2p(2, 3), small(0, 3)])")
    assert [near(*pair) for pair in zip(seen, (24, 30, 12, 48, 500), strict=True)] == [True] * 5, seen


def test_pcie_without_peer_access_goes_through_the_host_and_x1_is_slow(rig_3090: Bare) -> None:
    rig_3090.put(gpu2__pcie__width_now=1)
    seen = ask(rig_3090, "say([access(0, 1), p2p(0, 1), p2p(0, 2, 8)])")
    assert seen[0] == 0
    assert near(seen[1], 31.5 / 2)
    assert near(seen[2], 1.97 / 2)
    rig_3090.put(**{"p2p.0-1": 0, "p2p.0-2": 0})
    seen = ask(rig_3090, "say([access(0, 1), p2p(0, 1), p2p(0, 2, 8)])")
    assert seen[0] == 1
    assert near(seen[1], 31.5 * 0.7)
    assert near(seen[2], 1.97 * 0.65)


def test_a_corrupt_pair_is_found_by_looking(servbadge: Bare) -> None:
    servbadge.put(**{"fault.pair.1-3": "corrupt"})
    code = "say([right(0, 1), right(1, 3), right(3, 1), sent(0, 1), sent(1, 3), summed(2), summed(4)])"
    assert ask(servbadge, code) == [True, False, False, True, False, True, False]


def test_a_repeated_copy_carries_what_was_written_in_between(servbadge: Bare) -> None:
    """The simulator does not move the same bytes twice when nothing was written since."""
    code = (
        "enable(0, 1)\n"
        "def moved(write):\n"
        "    put(gpu(0).a, [1.0, 2.0]); gpu(1); copy(0, 1, 8); copy(0, 1, 8); write(); copy(0, 1, 8)\n"
        "    return got(gpu(1).b, 2)\n"
        "comms = group(2)\n"
        "say([moved(lambda: None), moved(lambda: put(gpu(0).a, [3.0, 4.0])),\n"
        "     moved(lambda: ok(rt.cudaMemset(gpu(1).b, 0, S(8)))), moved(lambda: put(gpu(1).b, [5.0, 6.0])),\n"
        "     moved(lambda: all_reduce(comms, 2))])"
    )
    assert ask(servbadge, code) == [[1, 2], [3, 4], [1, 2], [1, 2], [1, 2]]


def test_a_hanging_pair_never_ends_and_is_killed(servbadge: Bare) -> None:
    servbadge.put(**{"fault.pair.0-2": "hang"})
    assert ask(servbadge, "say([right(0, 1), right(2, 3)])") == [True, True]
    assert_hangs(servbadge, "gpus(4); print('in', flush=True); right(0, 2)")
    aborted = (
        "comms = group(3); all_reduce(comms, 1 << 20)\n"
        "state = rt.cudaStreamQuery(gpu(0).stream)\n"
        "[nc.ncclCommAbort(V(c)) for c in comms]\n"
        "say([state, rt.cudaStreamSynchronize(gpu(0).stream)])"
    )
    assert ask(servbadge, aborted) == [600, 0]


def test_a_pair_that_hangs_with_one_branch_works_with_another(servbadge: Bare) -> None:
    servbadge.put(**{"fault.pair.0-2": "hang@545", "fault.pair.0-1": "corrupt@53"})
    assert ask(servbadge, "say([right(0, 2), right(0, 1)])") == [True, True]
    servbadge.put(**{"fault.pair.0-2": "hang@535"})
    assert_hangs(servbadge, "gpus(4); print('in', flush=True); right(0, 2)")


# NCCL


def test_nccl_moves_and_sums_at_the_links_rate(servbadge: Bare) -> None:
    seen = ask(servbadge, "say([send_rate(0, 1), sum_rate(4), sum_rate(2), sent(2, 3), summed(4), collectives()])")
    assert near(seen[0], 44)
    assert 90 < seen[1] < 130
    assert 34 < seen[2] < 45
    assert seen[3:] == [True, True, [True] * 4]


@pytest.mark.parametrize(
    ("version", "ends", "shm"),
    [
        ("2.16.5", "0[6000] -> 1[7000]", "SHM/direct/direct"),
        ("2.18.3", "0[0] -> 1[1]", "SHM/direct/direct"),
        ("2.21.5", "0[0] -> 1[1]", "SHM/direct/direct"),
        ("2.27.7", "0[0] -> 1[1]", "SHM/direct/direct"),
        ("2.30.7", "0[0] -> 1[1]", "SHM/direct"),
    ],
)
def test_each_version_has_its_own_words(servbadge: Bare, version: str, ends: str, shm: str) -> None:
    servbadge.put(nccl__version=version)
    major, minor, patch = map(int, version.split("."))
    code = "say([integer(nc.ncclGetVersion), summed(2)])"
    log, seen = run(servbadge, code, NCCL_DEBUG="INFO")
    assert seen == [major * 10000 + minor * 100 + patch, True]
    assert f"NCCL version {version}+cuda12.4\n" in log
    assert f"NCCL INFO Channel 00/0 : {ends} via P2P/direct pointer\n" in log
    assert "nvmlDev 1 busId 7000" in log
    log, _ = run(servbadge, code, NCCL_DEBUG="INFO", NCCL_P2P_DISABLE="1")
    assert f"NCCL INFO Channel 00 : {ends} via {shm}\n" in log
    assert "P2P/" not in log


def test_other_transports_have_their_words(servbadge: Bare) -> None:
    for variables, words in (
        (["NCCL_P2P_DIRECT_DISABLE"], "P2P/CUMEM"),
        (["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"], "NET/Socket/0"),
    ):
        log, _ = run(servbadge, "say(summed(2))", NCCL_DEBUG="INFO", **dict.fromkeys(variables, "1"))
        assert f"via {words}" in log


@pytest.mark.parametrize(
    ("version", "vendor", "level", "ranks", "way"),
    [
        ("2.21.5", "amd", "", 3, "P2P"), ("2.21.5", "intel", "", 3, "SHM"), ("2.27.7", "amd", "", 3, "SHM"),
        ("2.27.7", "amd", "", 2, "P2P"), ("2.27.7", "intel", "SYS", 3, "P2P"), ("2.21.5", "amd", "PIX", 3, "SHM"),
        ("2.21.5", "amd", "1", 3, "SHM"),
    ],
)  # fmt: skip
def test_how_far_peers_may_be(rig_3090: Bare, version: str, vendor: str, level: str, ranks: int, way: str) -> None:
    rig_3090.put(nccl__version=version, cpu_vendor=vendor, **{"p2p.default": 0})
    env = {"NCCL_DEBUG": "INFO"} | ({"NCCL_P2P_LEVEL": level} if level else {})
    log, _ = run(rig_3090, f"say(summed({ranks}))", **env)
    assert log.count(f"via {way}/") == log.count("via ") > 0


def test_refused_peers_share_memory_and_a_dead_nvlink_is_an_error(servbadge: Bare, rig_3090: Bare) -> None:
    servbadge.put(**{"fault.pair.0-1": "refuse"})
    log, seen = run(servbadge, "say([access(0, 1), summed(2), send_rate(0, 1)])", NCCL_DEBUG="INFO")
    assert "Could not enable P2P between dev 0(=6000) and dev 1(=7000)" in log
    assert "via SHM/direct/direct" in log
    assert seen[:2] == [0, True]
    assert near(seen[2], 15.76 / 2)
    servbadge.put(**{"fault.pair.0-1": "", "p2p.r.0-1": 3})
    log, seen = run(servbadge, "say(nc.ncclCommInitAll((V*2)(), 2, None))", NCCL_DEBUG="WARN")
    assert "NCCL WARN P2P is disabled between NVLINK connected GPUs 0 and 1." in log
    assert seen == 1
    rig_3090.put(cpu_vendor="amd")
    log, _ = run(rig_3090, "say(summed(2))", NCCL_DEBUG="INFO")
    assert "P2P is disabled between connected GPUs 0 and 1. You can repress" in log


def test_the_log_goes_where_it_is_told(servbadge: Bare, tmp_path: Path) -> None:
    log, _ = run(servbadge, "say(summed(2))", NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(tmp_path / "log.%p"))
    (written,) = tmp_path.iterdir()
    assert log == ""
    assert "Init COMPLETE" in written.read_text()
    (tmp_path / ".nccl.conf").write_text("# left behind\nNCCL_P2P_DISABLE=1\n")
    log, _ = run(servbadge, "say(summed(2))", NCCL_DEBUG="INFO", HOME=str(tmp_path))
    assert "NCCL_P2P_DISABLE set by environment to 1." in log
    assert "via SHM/" in log


def test_ranks_meet_in_threads_and_no_other_process(servbadge: Bare) -> None:
    assert ask(servbadge, "say([threaded(4), unmatched()])") == [True, 600]


# Load


def nvml(driver: Bare, code: str) -> Any:
    """Returns the values that a second process reads through NVML."""
    code = f"from pynvml import *\nnvmlInit(); h = nvmlDeviceGetHandleByIndex\nimport json; print(json.dumps({code}))"
    argv = [sys.executable, "-c", code]
    return json.loads(subprocess.run(argv, env=driver.env(), text=True, capture_output=True, timeout=30).stdout)


READ = (
    "[nvmlDeviceGetUtilizationRates(h(0)).gpu, nvmlDeviceGetPowerUsage(h(0)) // 1000,"
    " nvmlDeviceGetTemperature(h(0), 0), nvmlDeviceGetCurrPcieLinkGeneration(h(0)),"
    " [[p.pid, p.usedGpuMemory >> 20] for p in nvmlDeviceGetComputeRunningProcesses(h(0))]]"
)


def test_a_product_is_computed_and_a_big_one_heats_the_gpu(rig_3090: Bare) -> None:
    rig_3090.put(heat__speed=60)
    assert nvml(rig_3090, READ) == [0, 30, 30, 1, []]
    assert ask(rig_3090, "say(small_product())") == [19.0, 43.0, 22.0, 50.0]
    process = begun(rig_3090, "gpu(0); print('in', flush=True); heat(0, 5); say(tflops(0))")
    deadline = time.monotonic() + 4.9
    while True:
        util, watts, celsius, generation, processes = nvml(rig_3090, READ)
        if (util > 50 and watts > 250 and celsius > 55) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert util > 50
    assert generation == 4
    assert watts > 250
    assert celsius > 55
    assert processes == [[process.pid, 300 + 3 * 64 + 64]]
    rate = json.loads(process.communicate(timeout=20)[0])
    assert 20 < rate < 40
    assert nvml(rig_3090, READ)[4] == []


def test_an_interrupt_hang_is_busy_without_power(servbadge: Bare) -> None:
    servbadge.put(**{"nccl.irq_hang": 1})
    process = begun(servbadge, "comms = group(2); print('in', flush=True); all_reduce(comms, 1 << 20); wait(0)")
    time.sleep(0.9)
    names = [path.read_text().strip() for path in Path(f"/proc/{process.pid}/task").glob("*/comm")]
    util, watts, _, _, processes = nvml(servbadge, READ)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "nv_queue" in names
    assert util == 100
    assert watts < 150
    assert processes[0][0] == process.pid
    assert nvml(servbadge, READ)[4] == []


@pytest.mark.usefixtures("as_root")
def test_an_ordinary_user_computes_and_is_seen(servbadge: Bare) -> None:
    become = "import os, pwd; os.setgroups([]); os.setuid(pwd.getpwnam('nobody').pw_uid)\n"
    process = begun(servbadge, become + "gpu(0); print('in', flush=True); input(); say(1)")
    assert [pid for pid, _ in nvml(servbadge, READ)[4]] == [process.pid]
    process.communicate("\n", timeout=20)


def test_only_versions_are_built(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no version"):
        build("nccl", "2.21", tmp_path, tmp_path)
