"""gpu_limits.py as it runs on a GPU host: a program and pynvml.py in one folder, over the simulated driver."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pynvml
import pytest

from lab.nvml.bare import Bare, bare
from lab.rigfile import describe

VERSION = "535.261.03"
SOURCE = Path(__file__).resolve().parents[1] / "rigwright/onhost/gpu_limits.py"
UUIDS = [gpu["uuid"] for gpu in describe("servbadge")["gpus"]]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="setting limits wants root"),
]
RULE: dict[str, Any] = {
    "match": {},
    "persistence": True,
    "power_limit_w": 200,
    "application_clocks": {"memory_mhz": 877, "graphics_mhz": 1005},
}
ALL: dict[str, Any] = {"expected_gpus": 4, "gpus": [RULE]}


@pytest.fixture
def driver(tmp_path: Path) -> Bare:
    return bare("servbadge", VERSION, tmp_path / "rig")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Where provision puts it."""
    folder = tmp_path / "lib"
    folder.mkdir()
    shutil.copy(pynvml.__file__, folder / "pynvml.py")
    return Path(shutil.copy(SOURCE, folder / SOURCE.name))


def run(driver: Bare, program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """-I: nothing but the program's own folder may bring pynvml."""
    argv = [sys.executable, "-I", str(program), *words]
    return subprocess.run(argv, env=driver.env(), capture_output=True, text=True, timeout=60, check=False)


def apply(driver: Bare, program: Path, config: dict[str, Any], *words: str) -> subprocess.CompletedProcess[str]:
    path = program.parent / "limits.json"
    path.write_text(json.dumps(config))
    return run(driver, program, "apply", "--config", str(path), "--wait-s", "0", *words)


def show(driver: Bare, program: Path) -> dict[str, Any]:
    done = run(driver, program, "show")
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_it_is_python_3_8() -> None:
    ast.parse(SOURCE.read_text(), feature_version=(3, 8))


def test_apply_sets_reads_back_and_then_has_nothing_to_do(driver: Bare, program: Path) -> None:
    first = apply(driver, program, ALL)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines()[0] == (
        "GPU 0 00000000:06:00.0 Tesla V100-SXM2-16GB: persistence off -> on; power limit 300 -> 200 W; "
        "application clocks 877,1312 -> 877,1005 MHz"
    )
    assert len(first.stdout.splitlines()) == 4
    state = driver.kept()
    again = apply(driver, program, ALL)
    assert again.returncode == 0
    assert again.stdout.splitlines()[3] == ("GPU 3 00000000:0B:00.0 Tesla V100-SXM2-16GB: as wanted, nothing to change")
    assert driver.kept() == state


def test_only_the_gpu_that_differs_is_touched(driver: Bare, program: Path) -> None:
    apply(driver, program, ALL)
    driver.put(gpu2__set__power_limit_mw=300000)
    lines = apply(driver, program, ALL).stdout.splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == [
        "as wanted, nothing to change",
        "as wanted, nothing to change",
        "power limit 300 -> 200 W",
        "as wanted, nothing to change",
    ]


def test_the_first_matching_rule_wins(driver: Bare, program: Path) -> None:
    config = {
        "gpus": [
            {"match": {"uuid": UUIDS[1]}, "persistence": True, "power_limit_w": 180},
            {"match": {"pci_bus_id": "0a:00.0"}, "persistence": True, "power_limit_w": 190},
            {"match": {"pci_bus_id": "0000:06:00.0"}, "persistence": True, "locked_graphics_mhz": [210, 1400]},
        ]
    }
    done = apply(driver, program, config)
    assert done.returncode == 0
    assert [line.split(": ", 1)[1] for line in done.stdout.splitlines()] == [
        "persistence off -> on; locked graphics clock to 210-1400 MHz (set, not readable)",
        "persistence off -> on; power limit 300 -> 180 W",
        "persistence off -> on; power limit 300 -> 190 W",
        "no rule for it, left alone",
    ]
    assert [gpu["power_limit_w"] for gpu in show(driver, program)["gpus"]] == [300, 180, 190, 300]


def test_a_refusal_is_named_and_stops_no_other(driver: Bare, program: Path) -> None:
    clocks = {"memory_mhz": 877, "graphics_mhz": 1001}
    refused = {"match": {"uuid": UUIDS[0]}, "persistence": True, "power_limit_w": 500, "application_clocks": clocks}
    done = apply(driver, program, {"gpus": [refused, RULE]})
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "GPU 0 00000000:06:00.0 Tesla V100-SXM2-16GB: refused: power limit: 500 W is not between 150 and 300 W",
        "GPU 0 00000000:06:00.0 Tesla V100-SXM2-16GB: refused: application clocks: "
        "877,1001 MHz is no supported pair (near it: 1005, 997)",
    ]
    gpus = show(driver, program)["gpus"]
    assert [gpu["power_limit_w"] for gpu in gpus] == [300, 200, 200, 200]
    assert gpus[0]["persistence"] is True


def test_a_setter_that_lies_is_found_out(driver: Bare, program: Path) -> None:
    driver.put(gpu1__fault__deaf=1, gpu2__fault__call__nvmlDeviceGetPersistenceMode=3)
    done = apply(driver, program, ALL)
    assert done.returncode == 1
    assert [line.split("refused: ")[1] for line in done.stderr.splitlines()] == [
        "persistence: set to on, reads off",
        "power limit: set to 200 W, reads 300 W",
        "application clocks: set to 877,1005 MHz, reads 877,1312 MHz",
        "persistence: Not Supported",
    ]


def test_lost_and_hanging_gpus_are_given_up(driver: Bare, program: Path) -> None:
    driver.put(gpu1__fault__open=15, gpu2__fault__delay_ms=120000)
    started = time.monotonic()
    done = apply(driver, program, ALL, "--gpu-timeout-s", "2")
    assert time.monotonic() - started < 15
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["GPU 1: GPU is lost", "GPU 2: no answer within 2 s"]
    assert len(done.stdout.splitlines()) == 2
    driver.put(gpu2__fault__delay_ms=0)
    gpus = show(driver, program)["gpus"]
    assert [gpu["power_limit_w"] for gpu in gpus] == [200, None, 300, 200]
    assert gpus[1]["errors"] == {"gpu": "GPU is lost"}


def test_a_missing_gpu_is_counted_and_named(driver: Bare, program: Path) -> None:
    driver.put(gpu3__absent=1)
    named = {"match": {"uuid": UUIDS[3]}, "power_limit_w": 200}
    done = apply(driver, program, {**ALL, "gpus": [named, RULE]})
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "3 of 4 expected GPUs present",
        f'no GPU answers to {{"uuid": "{UUIDS[3]}"}}',
    ]
    assert len(done.stdout.splitlines()) == 3


def test_it_waits_for_the_driver_and_for_late_gpus(driver: Bare, program: Path) -> None:
    driver.load_driver("none")
    driver.put(gpu3__absent=1)
    path = program.parent / "limits.json"
    path.write_text(json.dumps(ALL))
    argv = [sys.executable, str(program), "apply", "--config", str(path), "--wait-s", "30"]
    pipe = subprocess.PIPE
    waiting = subprocess.Popen(argv, env=driver.env(), stdout=pipe, stderr=pipe, text=True)
    time.sleep(1)
    driver.load_driver(VERSION)
    time.sleep(1.5)
    driver.put(gpu3__absent=0)
    out, errors = waiting.communicate(timeout=30)
    assert (waiting.returncode, errors) == (0, "")
    assert sorted(line.split()[1] for line in out.splitlines()) == ["0", "1", "2", "3"]


def test_without_a_driver_it_says_so_in_time(driver: Bare, program: Path) -> None:
    driver.load_driver("none")
    done = apply(driver, program, ALL)
    assert (done.returncode, done.stderr) == (1, "driver: Driver Not Loaded\n")
    shown = run(driver, program, "show")
    assert shown.returncode == 1
    assert json.loads(shown.stdout)["gpus"] == []
    assert shown.stderr == "driver: Driver Not Loaded\n"


def test_a_wrong_library_is_not_waited_for(driver: Bare, program: Path) -> None:
    driver.load_driver("550.163.01")
    path = program.parent / "limits.json"
    path.write_text(json.dumps(ALL))
    started = time.monotonic()
    done = run(driver, program, "apply", "--config", str(path), "--wait-s", "60")
    assert time.monotonic() - started < 20
    assert done.returncode == 1
    assert "version mismatch" in done.stderr


def test_show_tells_everything_of_a_v100(driver: Bare, program: Path) -> None:
    document = show(driver, program)
    assert (document["driver_version"], document["nvml_version"]) == (VERSION, "12." + VERSION)
    gpu = document["gpus"][2]
    clocks = gpu.pop("supported_application_clocks")
    assert clocks["877"][:2] == [1530, 1522]
    assert gpu == {
        "index": 2,
        "uuid": UUIDS[2],
        "pci_bus_id": "00000000:0A:00.0",
        "name": "Tesla V100-SXM2-16GB",
        "persistence": False,
        "power_limit_w": 300,
        "power_limit_default_w": 300,
        "power_limit_min_w": 150,
        "power_limit_max_w": 300,
        "application_clocks": {"memory_mhz": 877, "graphics_mhz": 1312},
        "default_application_clocks": {"memory_mhz": 877, "graphics_mhz": 1312},
        "errors": {},
    }


def test_show_says_why_a_3090_has_no_application_clocks(tmp_path: Path, program: Path) -> None:
    cards = bare("rig-3090", VERSION, tmp_path / "cards")
    gpus = show(cards, program)["gpus"]
    assert [gpu["power_limit_max_w"] for gpu in gpus] == [350, 375, 480]
    assert gpus[0]["application_clocks"] is None
    assert gpus[0]["errors"] == {"application_clocks": "Not Supported", "default_application_clocks": "Not Supported"}


def test_reset_gives_the_defaults_back_and_leaves_persistence(driver: Bare, program: Path) -> None:
    rule = {**RULE, "locked_graphics_mhz": [210, 900]}
    apply(driver, program, {"gpus": [rule]})
    done = run(driver, program, "reset")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].endswith(
        ": power limit 200 -> 300 W; application clocks 877,1005 -> 877,1312 MHz"
    )
    kept = driver.kept()
    assert kept["gpu0.set.persistence"] == "1"
    assert "gpu0.set.locked_graphics_max" not in kept
    again = run(driver, program, "reset")
    assert again.stdout.splitlines()[0].endswith(": as wanted, nothing to change")


def test_a_wrong_configuration_ends_before_any_gpu_is_asked(driver: Bare, program: Path) -> None:
    done = apply(driver, program, {"gpus": [{"match": {}, "power_limit": 200}]})
    assert done.returncode == 1
    assert "unknown key: power_limit" in done.stderr
    done = apply(driver, program, {"gpus": [{"match": {"pci_bus_id": "zz"}}]})
    assert done.returncode == 1
    assert "ValueError" in done.stderr
    assert driver.kept().keys() == {"driver.loaded", "driver.instance"}
