"""Faults of power, heat and arithmetic, as programs of the simulated NVML and CUDA find them. No host is booted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from lab.base import lock
from lab.faults import inject, tamper
from lab.hardware import hw_state
from lab.hardware.board import board_conf, model
from lab.hardware.rigfile import describe
from lab.host import active_faults, disk
from lab.host.disk import Host
from lab.simulators.cuda.bare import add_cuda
from lab.simulators.nvml.bare import CACHE, Bare
from lab.simulators.nvml.build import build
from rigwright.core.errors import UsageError

VERSION = "535.261.03"
PRELUDE = (Path(__file__).parent / "cuda_prelude.py").read_text()
READ = """
import json
from pynvml import *
nvmlInit()
h = nvmlDeviceGetHandleByIndex({gpu})
memory = nvmlDeviceGetFieldValues(h, [82])[0]
print(json.dumps({{
    "core": nvmlDeviceGetTemperature(h, 0), "clock": nvmlDeviceGetClockInfo(h, 0),
    "fan": nvmlDeviceGetFanSpeed(h) if nvmlDeviceGetNumFans(h) else None,
    "reasons": nvmlDeviceGetCurrentClocksThrottleReasons(h), "watts": nvmlDeviceGetPowerUsage(h) // 1000,
    "memory": None if memory.nvmlReturn else memory.value.uiVal,
}}))
"""
SW_THERMAL, HW_THERMAL = 0x20, 0x40


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[Host, Bare]]]:
    """Yields a host of each of two rigs, that the lab lists and that is off, with a driver over its hardware."""
    for module, names in ((disk, ["HOSTS"]), (active_faults, ["RUN"]), (lock, ["STATE", "HOSTS", "RUN"])):
        for name in names:
            monkeypatch.setattr(module, name, tmp_path)
    monkeypatch.setattr(inject, "need_root", lambda _: None)
    monkeypatch.setattr(tamper.switch, "running", lambda _: False)
    with TemporaryDirectory(prefix="rigwright-faults.") as folder:
        libraries = Path(folder)
        library = build(VERSION, libraries, CACHE)
        (libraries / "libnvidia-ml.so.1").symlink_to(library.name)
        made = {}
        for number, rig in enumerate(("servbadge", "rig-3090")):
            host = Host(rig, rig, 10 + number, ())
            disk.save(host)
            host.hw.mkdir(parents=True)
            described = describe(rig)
            board = board_conf(described, {gpu["model"]: model(gpu["model"]) for gpu in described["gpus"]})
            (host.hw / "board.conf").write_text(board)
            driver = add_cuda(Bare(host.hw, libraries), VERSION)
            driver.load_driver(VERSION)
            made[rig] = (host, driver)
        yield made


def ask(driver: Bare, code: str) -> Any:
    """Returns the last line of a CUDA program's output as JSON."""
    argv = [sys.executable, "-c", PRELUDE + code]
    done = subprocess.run(argv, env=driver.env(), cwd="/", text=True, stdout=subprocess.PIPE, timeout=60, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_a_repeated_copy_carries_what_was_written_in_between(hosts: dict[str, tuple[Host, Bare]]) -> None:
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
    assert ask(hosts["servbadge"][1], code) == [[1, 2], [3, 4], [1, 2], [1, 2], [1, 2]]


def reads(driver: Bare, gpu: int) -> dict[str, Any]:
    """Returns NVML's readings of a GPU."""
    argv = [sys.executable, "-c", READ.format(gpu=gpu)]
    done = subprocess.run(argv, env=driver.env(), cwd="/", text=True, stdout=subprocess.PIPE, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def after(driver: Bare, gpu: int, minutes: float = 10) -> dict[str, Any]:
    """Returns NVML's readings of a GPU after these minutes."""
    reads(driver, gpu)
    driver.pass_time(60 * minutes)
    return reads(driver, gpu)


def loaded(driver: Bare) -> None:
    driver.put(gpu0__load=100, gpu1__load=100)


def put(name: str, host: Host, gpu: int = 1) -> None:
    inject.fault(host.name, name, str(gpu), lambda _: None)


def healed(host: Host) -> None:
    inject.heal(host.name, "", lambda _: None)


@pytest.mark.parametrize("rig", ["servbadge", "rig-3090"])
def test_fan_dead(hosts: dict[str, tuple[Host, Bare]], rig: str) -> None:
    host, driver = hosts[rig]
    put("fan-dead", host)
    idle, well_idle = after(driver, 1), after(driver, 0)
    assert well_idle["core"] + 15 < idle["core"] < 75
    loaded(driver)
    hot, well = after(driver, 1), after(driver, 0)
    assert hot["reasons"] & (SW_THERMAL | HW_THERMAL)
    assert not well["reasons"] & (SW_THERMAL | HW_THERMAL)
    assert hot["clock"] < 0.7 * well["clock"]
    assert hot["core"] > well["core"] + 15
    assert hot["fan"] == (0 if rig == "rig-3090" else None)
    healed(host)
    assert after(driver, 1)["core"] == well["core"]


def test_memory_hot(hosts: dict[str, tuple[Host, Bare]]) -> None:
    host, driver = hosts["servbadge"]
    put("memory-hot", host)
    assert after(driver, 1)["memory"] < 40, "idle it is as the others"
    loaded(driver)
    hot, well = after(driver, 1), after(driver, 0)
    assert hot["reasons"] & SW_THERMAL
    assert 80 <= hot["memory"] <= 86
    assert hot["core"] <= well["core"]
    assert hot["clock"] < 0.95 * well["clock"]


def test_memory_hot_needs_a_limit_of_the_memory(hosts: dict[str, tuple[Host, Bare]]) -> None:
    host, _ = hosts["servbadge"]
    disk.save(Host("old", "quad-2080ti", 20, ()))
    with pytest.raises(UsageError, match="rig quad-2080ti has no known limit of its memory's temperature"):
        inject.fault("old", "memory-hot", "", lambda _: None)
    assert "memory-limit" in inject.parts(host.rig)


def test_slow_gpu(hosts: dict[str, tuple[Host, Bare]]) -> None:
    host, driver = hosts["servbadge"]
    rates = ask(driver, "say([tflops(0), tflops(1)])")
    assert rates[0] == pytest.approx(rates[1], rel=0.05)
    put("slow-gpu", host)
    rates = ask(driver, "say([tflops(0), tflops(1)])")
    assert rates[1] / rates[0] == pytest.approx(0.7, abs=0.05)
    loaded(driver)
    slow, well = after(driver, 1), after(driver, 0)
    assert [slow[name] for name in ("clock", "watts", "core")] == [well[name] for name in ("clock", "watts", "core")]
    healed(host)
    assert "gpu1.speed_percent" not in hw_state.values(host.hw)


@pytest.mark.nightly
def test_wrong_bit(hosts: dict[str, tuple[Host, Bare]]) -> None:
    host, driver = hosts["servbadge"]
    wrong, right = ask(driver, "say(wrong(1, 250))")
    assert wrong == 0
    assert right[0] == sum((1 + n * 1024 % 5) * (1 + n % 5) for n in range(1024)), "the corner is computed"
    put("wrong-bit", host)
    wrong, same = ask(driver, "say(wrong(1, 250))")
    assert (wrong, same) == (2, right)
    assert ask(driver, "say(wrong(0, 250))")[0] == 0


LIVE = """
import json, sys, time
from pynvml import *
nvmlInit()
gpus = range(nvmlDeviceGetCount())
def code(gpu):
    try:
        nvmlDeviceGetPowerUsage(nvmlDeviceGetHandleByIndex(gpu))
    except NVMLError as error:
        return error.value
    return 0
code(0)
with open(sys.argv[1], "a") as state:
    state.writelines(f"gpu{gpu}.load=100\\n" for gpu in gpus)
time.sleep(1.5)
print(json.dumps([code(gpu) for gpu in gpus]))
"""


def ramp(host: Host, driver: Bare, **keys: object) -> list[int]:
    """Loads all GPUs at the same time after a power cut; returns NVML's code for each after 1.5 s. 15: the GPU is
    lost."""
    driver.cut_power()
    driver.load_driver(VERSION)
    driver.put(**keys)
    argv = [sys.executable, "-c", LIVE, str(host.hw / "volatile/state")]
    done = subprocess.run(argv, env=driver.env(), cwd="/", text=True, stdout=subprocess.PIPE, timeout=60, check=True)
    found: list[int] = json.loads(done.stdout)
    return found


def test_supply_out_of_each_rail(hosts: dict[str, tuple[Host, Bare]]) -> None:
    host, driver = hosts["servbadge"]
    assert ramp(host, driver) == [0, 0, 0, 0], "three supplies hold"
    inject.fault(host.name, "supply-out", "", lambda _: None)
    assert sorted(ramp(host, driver))[-1] == 15, "two do not"
    limited = {f"gpu{gpu}.set.{key}": value for gpu in range(4) for key, value in
               (("power_limit_mw", 200000), ("persistence", 1))}  # fmt: skip
    instance = {f"gpu{gpu}__set__instance": 1 for gpu in range(4)} | {"driver__instance": 1}
    assert sorted(ramp(host, driver, **limited, **instance))[-1] == 15, "nor with a limit, which peaks exceed"
    clocks = {f"gpu{gpu}.set.application_graphics_mhz": 1005 for gpu in range(4)}
    assert ramp(host, driver, **limited, **clocks, **instance) == [0, 0, 0, 0], "with clocks they do"
    healed(host)
    assert ramp(host, driver) == [0, 0, 0, 0]
    host, driver = hosts["rig-3090"]
    assert ramp(host, driver) == [0, 0, 0]
    inject.fault(host.name, "supply-out", "", lambda _: None)
    assert ramp(host, driver) == [15, 15, 0]
    host, driver = hosts["servbadge"]
    inject.fault(host.name, "poor-joint", "", lambda _: None)
    assert sorted(ramp(host, driver))[-1] == 15
    healed(host)
    assert ramp(host, driver) == [0, 0, 0, 0]
