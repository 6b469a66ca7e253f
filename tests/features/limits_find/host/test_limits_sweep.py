"""limits_sweep.py as on a GPU host, over the simulated libraries: speeds follow the limits, which are as before at
every end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.hardware.rigfile import describe
from lab.simulators.nvml.bare import Bare
from rigwright.core.command import Result
from rigwright.features.limits_find.facts import SweepDocument, swept

UUIDS = [gpu["uuid"] for gpu in describe("rig-3090")["gpus"]]
pytestmark = pytest.mark.usefixtures("as_root")  # the driver lets only root set limits


NVML = """
import sys; sys.path.insert(0, sys.argv[1]); import pynvml
pynvml.nvmlInit()
for number in range(3):
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(number)
        if sys.argv[2:]:
            pynvml.nvmlDeviceSetPersistenceMode(gpu, 1)
            pynvml.nvmlDeviceSetPowerManagementLimit(gpu, int(sys.argv[2]))
        print(pynvml.nvmlDeviceGetPowerManagementLimit(gpu))
    except pynvml.NVMLError as error:
        print(error)
"""


def limits(driver: Bare, folder: Path, *set_mw: str) -> list[str]:
    """Returns the power limit of each GPU, mW, or NVML's error; sets it before, with persistence."""
    argv = [sys.executable, "-I", "-c", NVML, str(folder), *set_mw]
    return subprocess.run(argv, env=driver.env(), capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(autouse=True)
def _limits_of_280_w(rig_3090: Bare, folder: Path) -> None:
    boot_id = folder / "root/proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True, exist_ok=True)
    boot_id.write_text("a-boot\n")
    assert limits(rig_3090, folder, "280000") == ["280000"] * 3


def start(driver: Bare, folder: Path, points: list[Any]) -> subprocess.Popen[str]:
    env = {**driver.env(), "TMPDIR": str(folder), "RIGWRIGHT_ROOT": str(folder / "root")}
    argv = [sys.executable, "-I", str(folder / "limits_sweep.py"), "sweep", "--points", json.dumps(points)]
    argv += ["--settle-s", "0.3", "--seconds", "0.4", "--timeout-s", "120"]
    return subprocess.Popen(argv, env=env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], code: int) -> SweepDocument:
    """Waits for the program, which must exit with `code`; returns its document as the fact reads it."""
    out, errors = process.communicate(timeout=120)
    assert process.returncode == code, out + errors
    found = swept.parse(Result(0, out.encode()))
    assert isinstance(found, SweepDocument)
    assert found.outcome == ("ok", "failed", "could not run")[code]
    assert found.left_behind == ()
    return found


def each(watts: int) -> dict[str, Any]:
    """Returns a point with the same power limit for all GPUs."""
    return {uuid: {"power_limit_w": watts} for uuid in UUIDS}


def test_limits_are_measured_and_put_back(rig_3090: Bare, folder: Path) -> None:
    points = [
        {uuid: {"power_limit_w": watts, "locked_graphics_mhz": [210, mhz]} for uuid in UUIDS}
        for watts, mhz in ((120, 900), (300, 1800))
    ]
    found = ended(start(rig_3090, folder, points), 0)
    assert [point.number for point in found.points] == [0, 1]
    assert max(found.points[0].tflops) < 0.9 * min(found.points[1].tflops), "limits cost speed"
    assert [gpu.uuid for gpu in found.gpus] == UUIDS
    assert limits(rig_3090, folder) == ["280000"] * 3
    assert not (folder / "limits-before.json").exists()


def test_a_gpu_that_is_lost_in_the_middle_ends_the_sweep_and_the_others_have_their_limits(
    rig_3090: Bare, folder: Path
) -> None:
    process = start(rig_3090, folder, [each(watts) for watts in (120, 180, 240, 300)])
    assert process.stderr
    for line in process.stderr:
        if line.startswith("point 1 of 4"):
            rig_3090.put(gpu1__fault=15, gpu1__fault__open=15)
            break
    found = ended(process, 1)
    measured = len(found.points)
    assert [point.number for point in found.points] == list(range(measured)), "those before it"
    assert 1 <= measured < 4
    (lost,) = found.lost
    assert (lost.gpu, lost.where.partition(",")[0]) == (1, f"point {measured + 1} of 4")
    assert "GPU 1 no longer works" in lost.what
    assert [text.partition(":")[0] for text in found.not_put_back] == [UUIDS[1]]
    assert limits(rig_3090, folder) == ["280000", "GPU is lost", "280000"]
