"""nccl_p2p.py as on a GPU host: its files and pynvml.py in one folder, over the simulated libraries."""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from lab.simulators.nvml.bare import Bare
from tests.onhost.conftest import VERSION
from tests.paths import ROOT

CASES = sorted((ROOT / "tests/cases/nccl").glob("*.txt"))
QUICK = ("--quick", "--step-timeout-s", "5")


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    return folder / "nccl_p2p.py"


@pytest.fixture(autouse=True)
def _no_process_is_left(rigs: dict[str, Bare]) -> Iterator[None]:
    yield
    assert [pid for driver in rigs.values() for pid in processes(driver)] == []


def processes(driver: Bare) -> list[int]:
    """Returns the program's processes that use this driver's hardware."""
    mark, found = f"NVMLSIM_DIR={driver.hardware}".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes().split(b"\0") and b"nccl_p2p" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def start(driver: Bare, program: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    argv, pipe = [sys.executable, "-I", str(program), *words], subprocess.PIPE
    env = {**driver.env(), "TMPDIR": str(driver.hardware.parent), **env}
    return subprocess.Popen(argv, env=env, cwd="/", text=True, stdout=pipe, stderr=pipe)


def run(driver: Bare, program: Path, *words: str, code: int = 0, **env: str) -> dict[str, Any]:
    """Runs the program, which must exit with `code`; returns its document."""
    process = start(driver, program, *words, **env)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, out + err
    document: dict[str, Any] = json.loads(out)
    assert document["outcome"] == ("ok", "failed", "could not run")[code]
    return document


def pair(document: dict[str, Any], a: int, b: int) -> dict[str, Any]:
    (found,) = (one for one in document["pairs"] if (one["from"], one["to"]) == (a, b))
    return dict(found)


def each(document: dict[str, Any], *path: str) -> set[Any]:
    """Returns the set of a value over all pairs."""
    values = set()
    for one in document["pairs"]:
        for key in path:
            one = one and one[key]
        values.add(one)
    return values


def near(seen: float, wanted: float) -> bool:
    return abs(seen / wanted - 1) < 0.2


# NCCL's log


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_log(path: Path, module: Callable[[str], Any]) -> None:
    log, text, wanted = module("nccl_log"), path.read_text(), yaml.safe_load(path.with_suffix(".yml").read_text())
    assert set(wanted) - {"says", "warnings"} == {"version", "transports"}
    assert {f"{a}-{b}": way for (a, b), way in log.transports(text).items()} == wanted["transports"]
    assert log.version(text) == wanted["version"]
    assert log.warnings(text) == wanted.get("warnings", [])


def test_every_case_has_both_files() -> None:
    assert {path.stem for path in CASES} == {path.stem for path in (ROOT / "tests/cases/nccl").glob("*.yml")}


def test_the_entry_in_scripts(servbadge: Bare) -> None:
    argv = [sys.executable, str(ROOT / "scripts/nccl_p2p.py"), "--no-collective", "--pairs", "2-3", *QUICK]
    done = subprocess.run(argv, env=servbadge.env(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert each(json.loads(done.stdout), "bytes", "outcome") == {"ok"}


# Without faults


def test_nvlinks(servbadge: Bare, program: Path) -> None:
    found = run(servbadge, program, *QUICK)
    assert found["versions"] == {"driver": VERSION, "cuda_driver": "12.2", "cuda_runtime": "12.2", "nccl": "2.21.5"}
    second = found["gpus"][1]
    assert (second["index"], second["bus_id"], second["own"]["ok"]) == (1, "00000000:07:00.0", True)
    assert found["gpus"][3]["uuid"].startswith("GPU-")
    assert found["counts"] == {"nvml": 4, "cuda": 4}
    assert [(one["from"], one["to"]) for one in found["pairs"]] == list(itertools.permutations(range(4), 2))
    assert each(found, "grant", "cuda") == {True}
    assert each(found, "grant", "nvml", "read") == {"ok"}
    assert pair(found, 0, 1)["grant"]["distance"] == "PIX"
    assert each(found, "collective", "transport") == {"P2P/direct pointer"}
    assert each(found, "collective", "without_p2p", "kind") == {"SHM"}
    assert each(found, "collective", "with_level_sys") == {None}
    one = pair(found, 1, 0)
    assert near(one["bytes"]["gb_s"], 48)
    assert near(one["bytes"]["latency_us"], 1.9)
    assert near(one["staged"]["gb_s"], 7.9)
    assert near(one["collective"]["gb_s"], 44)
    assert near(one["collective"]["without_p2p"]["gb_s"], 7.3)
    summed = found["all_reduce"]
    assert near(summed["busbw_gb_s"], 126)
    assert summed["gpus"] == [0, 1, 2, 3]
    assert set(summed["transports"].values()) == {"P2P/direct pointer"}
    assert summed["without_p2p"]["busbw_gb_s"] < 8
    assert (found["errors"], found["notes"], found["scaling"], found["left_behind"]) == ([], [], [], [])


def test_pairs_that_share_no_gpu_are_tested_together(servbadge: Bare, program: Path) -> None:
    found = run(servbadge, program, *QUICK, "--no-collective")
    met = [{frozenset(pair) for pair in one} for one in found["rounds"]]
    assert [len(one) for one in met] == [2, 2, 2]
    assert all(not first & second for one in met for first in one for second in one - {first})
    assert each(found, "grant", "link") == {"NV2"}
    for tier in ("bytes", "staged"):
        alone = {(one["from"], one["to"]) for one in found["pairs"] if one[tier]["gb_s"] is not None}
        assert alone == {(0, 1), (1, 0)}
        assert {(one["from"], one["to"]) for one in found["pairs"] if one[tier]["latency_us"] is not None} == alone
        assert all(one[tier]["round_gb_s"] for one in found["pairs"])
    assert near(pair(found, 3, 2)["bytes"]["round_gb_s"], 47)


def test_every_pair_alone_and_how_long_each_tier_took(servbadge: Bare, program: Path) -> None:
    found = run(servbadge, program, *QUICK, "--no-collective", "--alone")
    assert found["rounds"] == []
    assert all(one["bytes"]["gb_s"] and one["bytes"]["round_gb_s"] is None for one in found["pairs"])
    assert list(found["tiers_s"]) == ["grant", "own", "bytes"]
    assert 0 < sum(found["tiers_s"].values()) <= found["seconds"] + 0.1


@pytest.mark.nightly
def test_an_outlier_of_the_rounds_is_measured_alone(servbadge: Bare, program: Path) -> None:
    servbadge.put(**{"fault.pair.2-3": "slow:6"})
    process = start(servbadge, program, *QUICK)
    out, err = process.communicate(timeout=60)
    found = json.loads(out)
    for tier in ("bytes", "collective"):
        alone = {(one["from"], one["to"]) for one in found["pairs"] if one[tier]["gb_s"] is not None}
        assert alone == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert near(pair(found, 2, 3)["bytes"]["gb_s"], 8)
    assert near(pair(found, 0, 1)["bytes"]["gb_s"], 48)
    assert "pair 2-3: copy with peer access, alone, slow in its round: ok" in err


def test_geforce_is_refused_and_shares_memory(rig_3090: Bare, program: Path) -> None:
    rig_3090.put(**{"p2p.default": 1})
    found = run(rig_3090, program, *QUICK)
    assert each(found, "grant", "nvml", "write") == {"chipset"}
    assert each(found, "bytes", "outcome") == {"refused"}
    assert each(found, "bytes", "ok") == {None}
    assert each(found, "collective", "transport") == {"SHM"}
    assert pair(found, 2, 0)["collective"]["words"] == ["SHM/direct/direct"]
    assert near(pair(found, 0, 1)["staged"]["gb_s"], 15.7)
    assert found["errors"] == []


@pytest.mark.nightly
def test_far_peers_are_tried_again_at_any_distance(rig_3090: Bare, program: Path) -> None:
    rig_3090.put(nccl__version="2.27.7", cpu_vendor="intel", **{"p2p.default": 0, "fault.pair.0-1": "refuse"})
    found = run(rig_3090, program, *QUICK)
    one, refused = pair(found, 0, 2)["collective"], pair(found, 0, 1)["collective"]
    assert (one["kind"], one["with_level_sys"]["transport"]) == ("SHM", "P2P/direct pointer")
    assert one["with_level_sys"]["gb_s"] > 1.2 * one["gb_s"]
    assert (refused["kind"], refused["with_level_sys"]) == ("SHM", None)
    assert found["notes"][0] == "pair 0-1: NVML grants peer access, CUDA refuses it"


@pytest.mark.nightly
def test_the_scaling_table(rig_3090: Bare, program: Path) -> None:
    rig_3090.put(**{"p2p.default": 0, "gpu0.tflops_fp32": 120, "gpu1.tflops_fp32": 120})
    found = run(rig_3090, program, "--pairs", "0-1")
    alone, both = found["scaling"]
    assert (alone["gpus"], alone["speed_up"], alone["efficiency"]) == (1, 1.0, 1.0)
    assert both["gpus"] == 2
    assert both["all_reduce_ms"] > 40 / 3
    assert 1 < both["speed_up"] < 1.9
    assert near(both["efficiency"], both["speed_up"] / 2)


def test_one_gpu(servbadge: Bare, program: Path) -> None:
    servbadge.put(gpu1__absent=1, gpu2__absent=1, gpu3__absent=1)
    found = run(servbadge, program, *QUICK)
    assert found["pairs"] == []
    assert found["gpus"][0]["own"]["ok"] is True
    assert (found["all_reduce"]["ok"], found["all_reduce"]["gpus"]) == (True, [0])
    assert found["all_reduce"]["busbw_gb_s"] is None


# With faults


def test_a_hang_ends_and_the_rest_goes_on(servbadge: Bare, program: Path, tmp_path: Path) -> None:
    servbadge.put(**{"fault.pair.0-2": "hang"})
    words = ("--quick", "--step-timeout-s", "1.5", "--journal", str(tmp_path / "journal"), "--pairs", "0-1,0-2")
    found = run(servbadge, program, *words, code=1)
    stuck, well = pair(found, 2, 0), pair(found, 1, 0)
    assert (stuck["bytes"]["outcome"], stuck["staged"]["outcome"]) == ("hang", "ok")
    assert (stuck["collective"]["outcome"], stuck["collective"]["transport"]) == ("hang", "P2P/direct pointer")
    assert stuck["collective"]["without_p2p"]["outcome"] == "ok"
    assert [well[tier]["outcome"] for tier in ("bytes", "staged", "collective")] == ["ok"] * 3
    assert found["all_reduce"]["outcome"] == "hang"
    assert found["all_reduce"]["without_p2p"]["ok"] is True
    assert found["left_behind"] == []
    lines = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    told = [(line["step"], line.get("outcome")) for line in lines]
    at = told.index(("pair 0-2: NCCL", "hang"))
    assert ("pair 0-2: NCCL", None) in told[:at]
    assert ("pair 2-0: NCCL", None) in told[at:]


@pytest.mark.nightly
def test_a_pair_that_hangs_in_a_round_is_named_and_the_others_go_on(servbadge: Bare, program: Path) -> None:
    servbadge.put(**{"fault.pair.1-2": "hang"})
    found = run(servbadge, program, "--quick", "--step-timeout-s", "3", code=1)
    for tier in ("bytes", "collective"):
        hung = {(one["from"], one["to"]) for one in found["pairs"] if one[tier]["outcome"] == "hang"}
        assert hung == {(1, 2), (2, 1)}
        assert {one[tier]["outcome"] for one in found["pairs"] if {one["from"], one["to"]} != {1, 2}} == {"ok"}
        assert pair(found, 0, 1)[tier]["gb_s"] is not None
    assert {error["where"] for error in found["errors"]} == {
        *(f"pair {ends} {tier}" for ends in ("1-2", "2-1") for tier in ("bytes", "collective")),
        "all-reduce",
    }
    beside = pair(found, 0, 3)  # its data was right while the other pair hung; the round's speed was not measured
    assert (beside["bytes"]["ok"], beside["bytes"]["round_gb_s"]) == (True, None)
    assert beside["bytes"]["gb_s"] is not None
    assert found["left_behind"] == []


@pytest.mark.nightly
def test_a_quick_test_does_not_wait_for_every_pair_that_hangs(
    servbadge: Bare, program: Path, module: Callable[[str], Any]
) -> None:
    servbadge.put(**{f"fault.pair.{a}-{b}": "hang" for a in range(4) for b in range(a + 1, 4)})
    found = run(servbadge, program, "--quick", "--step-timeout-s", "3", code=1)
    for tier in ("bytes", "collective"):
        outcomes = [pair[tier]["outcome"] for pair in found["pairs"]]
        assert (outcomes.count("hang"), outcomes.count("not run")) == (2, 10)
    assert each(found, "staged", "outcome") == each(found, "collective", "without_p2p", "outcome") == {"ok"}
    assert (found["all_reduce"]["outcome"], found["all_reduce"]["without_p2p"]["outcome"]) == ("hang", "ok")
    assert "2 others hang, and this is the quick test" in pair(found, 3, 2)["bytes"]["error"]
    watch = module("nccl_watch")
    steps = [watch.step(do, "", f"{do} 0", [], timeout_s=8) for do in ("copy", "send", "own")]
    sums = (4, 16, 64)  # GPUs
    steps += [watch.step("all_reduce", "", "all_reduce", [], (), [*range(count)], 8) for count in sums]
    for quick, hung, limits in ((True, True, [2, 2, 8, 2, 8, 8]), (True, False, [8] * 6), (False, True, [8] * 6)):
        one = watch.Watch(SimpleNamespace(quick=quick, timeout_s=9), "")
        one.hung = hung
        assert [step["timeout_s"] for step in one.hurried(steps, {})] == limits
        one.close()


@pytest.mark.nightly
def test_collectives_that_hang_by_themselves(servbadge: Bare, program: Path) -> None:
    servbadge.put(**{"nccl.irq_hang": 1})
    found = run(servbadge, program, "--quick", "--step-timeout-s", "1.5", "--pairs", "0-1", code=1)
    assert each(found, "collective", "outcome") == {"ok"}
    assert found["all_reduce"]["outcome"] == found["all_reduce"]["without_p2p"]["outcome"] == "hang"


def test_wrong_data_of_a_pair_in_its_round(servbadge: Bare, program: Path) -> None:
    servbadge.put(**{"fault.pair.1-3": "corrupt"})
    found = run(servbadge, program, *QUICK, "--pairs", "1-3,0-2", code=1)
    bad, good = pair(found, 3, 1), pair(found, 0, 2)
    assert (bad["bytes"]["outcome"], bad["staged"]["ok"], good["bytes"]["ok"]) == ("wrong data", True, True)
    assert [len(pairs) for pairs in found["rounds"]] == [4], "both pairs at once"
    assert "64 of 1024 blocks of 4 KiB differ, the first at byte 0" in bad["collective"]["error"]
    assert bad["collective"]["without_p2p"]["ok"] is True
    assert found["all_reduce"]["outcome"] == "wrong data"
    assert found["errors"][0]["where"] == "pair 1-3 bytes"


def test_a_gpu_lost_before(servbadge: Bare, program: Path) -> None:
    servbadge.put(gpu1__fault=15)
    found = run(servbadge, program, *QUICK, code=1)
    assert [error["where"] for error in found["errors"]] == ["GPU 1"]
    assert "a GPU is lost" in found["gpus"][1]["own"]["error"]
    assert pair(found, 0, 1)["bytes"]["outcome"] == "not run"
    assert pair(found, 2, 3)["collective"]["ok"] is True
    assert found["all_reduce"]["gpus"] == [0, 2, 3]
    servbadge.put(gpu1__fault="", gpu2__fault__open=15)
    found = run(servbadge, program, *QUICK, "--no-collective", code=1)
    assert found["counts"] == {"nvml": 4, "cuda": 3}
    assert found["errors"] == [{"where": "GPU 2", "what": "NVML lists GPU 2, CUDA does not"}]
    assert [gpu["cuda_device"] for gpu in found["gpus"]] == [0, 1, None, 2]
    assert pair(found, 3, 0)["bytes"]["ok"] is True


def when(process: subprocess.Popen[str], said: str, act: Callable[[], object]) -> tuple[str, str]:
    """Calls `act` as soon as the program prints `said`; returns the rest of its output."""
    assert process.stderr is not None
    for line in process.stderr:
        if said in line:
            act()
            break
    return process.communicate(timeout=60)


@pytest.mark.nightly
def test_a_gpu_lost_in_the_middle(servbadge: Bare, program: Path) -> None:
    process = start(servbadge, program, *QUICK)
    out, _ = when(process, "pair 0-3: copy through the host: ok", lambda: servbadge.put(gpu2__fault=15))
    assert process.returncode == 1
    found = json.loads(out)
    assert found["errors"][0]["where"] == "GPU 2"
    assert found["errors"][0]["what"].startswith("GPU 2 no longer works")
    missed = {one["bytes"]["error"] for one in found["pairs"] if one["bytes"]["outcome"] != "ok"}
    assert len(missed) == 1
    assert missed.pop().startswith("GPU 2 no longer works")
    assert {one["bytes"]["outcome"] for one in found["pairs"] if 2 not in (one["from"], one["to"])} == {"ok"}
    assert found["all_reduce"]["gpus"] == [0, 1, 3]


def test_an_nvlink_that_nvml_disables(servbadge: Bare, program: Path) -> None:
    servbadge.put(**{"p2p.r.0-1": 3})
    found = run(servbadge, program, *QUICK, "--pairs", "0-1,0-2", code=1)
    assert pair(found, 0, 1)["grant"]["nvml"]["read"] == "topology"
    assert "P2P is disabled between NVLINK connected GPUs 0 and 1" in pair(found, 0, 1)["collective"]["error"]
    assert pair(found, 0, 2)["collective"]["ok"] is True  # this pair has its own communicator
    assert pair(found, 0, 2)["collective"]["gpus"] == [0, 2]
    assert found["all_reduce"]["outcome"] == "error"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"driver__loaded": "none"}, "error 100: no GPU that CUDA can use"),
        ({"driver__loaded": "535.183.01"}, "error 803: libcuda and the kernel module"),
        ({"nvswitches": 6}, "error 802: the system is not ready: GPUs with NVSwitches need nvidia-fabricmanager"),
        ({"fault__cuda__init": 999}, "error 999: unknown error of the driver"),
    ],
)
def test_cuda_does_not_start(servbadge: Bare, program: Path, keys: dict[str, object], words: str) -> None:
    servbadge.put(**keys)
    found = run(servbadge, program, code=2)
    assert words in found["errors"][0]["what"]


def test_a_compute_mode_that_shuts_out(servbadge: Bare, program: Path) -> None:
    instance = servbadge.kept()["driver.instance"]
    servbadge.put(gpu1__set__compute_mode=2, gpu1__set__persistence=1, gpu1__set__instance=instance)
    found = run(servbadge, program, *QUICK, "--no-collective", code=1)
    assert found["notes"] == ["GPU 1 has compute mode prohibited"]
    assert "error 46" in found["gpus"][1]["own"]["error"]
    assert pair(found, 0, 2)["bytes"]["ok"] is True


@pytest.mark.nightly
def test_libraries_are_missed_by_name(servbadge: Bare, program: Path, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("libcudart.so.12", "libnccl.so.2"):
        shutil.copy(servbadge.libraries / name, tmp_path / "deep" / name)
    found = run(servbadge, program, *QUICK, "--pairs", "0-1", "--libraries", str(tmp_path))
    assert found["libraries"]["libnccl.so.2"] == str(tmp_path / "deep/libnccl.so.2")
    found = run(servbadge, program, "--step-timeout-s", "9", "--pairs", "0-1", "--libraries", str(tmp_path))
    assert found["notes"] == [f"no scaling table: libcublas.so.12 was not found below {tmp_path}"]
    assert each(found, "collective", "ok") == {True}
    (tmp_path / "deep/libnccl.so.2").unlink()
    found = run(servbadge, program, "--libraries", str(tmp_path), code=2)
    assert found["errors"] == [{"where": "libraries", "what": f"libnccl.so.2 was not found below {tmp_path}"}]
    assert run(servbadge, program, *QUICK, "--no-collective", "--libraries", str(tmp_path))["versions"]["nccl"] is None
    found = run(servbadge, program, code=2, LD_LIBRARY_PATH="")
    assert "libcuda.so.1 was not found for the loader" in found["errors"][0]["what"]


def test_a_pair_without_its_gpu(servbadge: Bare, program: Path) -> None:
    found = run(servbadge, program, "--pairs", "0-7", code=2)
    assert found["errors"] == [{"where": "--pairs", "what": "there is no GPU 7; there are 0, 1, 2, 3"}]


# Files and processes of other programs and of this one


@pytest.mark.nightly
def test_nobody_elses_settings_are_in_force(servbadge: Bare, program: Path, tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("# tuned\nNCCL_SHM_DISABLE = 1\nNCCL_ALGO=Tree\n")
    left = {"NCCL_P2P_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "3", "HOME": str(tmp_path)}
    found = run(servbadge, program, *QUICK, "--pairs", "0-1", **left)
    assert each(found, "collective", "kind") == {"P2P"}
    assert each(found, "collective", "without_p2p", "kind") == {"SHM"}
    conf = str(tmp_path / ".nccl.conf")
    assert [tuple(one.values()) for one in found["leftovers"] if one["where"] in ("environment", conf)] == [
        ("CUDA_VISIBLE_DEVICES", "3", "environment", False),
        ("NCCL_P2P_DISABLE", "1", "environment", False),
        ("NCCL_SHM_DISABLE", "1", conf, False),
        ("NCCL_ALGO", "Tree", conf, True),
    ]
    assert any(note.startswith("NCCL_P2P_DISABLE=1 in environment: it does not affect") for note in found["notes"])


@pytest.mark.nightly
@pytest.mark.usefixtures("as_root")
def test_little_shared_memory(rig_3090: Bare, program: Path) -> None:
    mount = "mount --make-rprivate / && mount -t tmpfs -o size=2m tmpfs /dev/shm"
    inner = ["sh", "-c", mount + ' && exec "$@"', "sh", sys.executable, "-I", str(program), *QUICK, "--pairs", "0-1"]
    done = subprocess.run(["unshare", "-m", *inner], env=rig_3090.env(), capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["shared_memory"] == {"size_mib": 2, "free_mib": 2, "enough": False}
    assert "/dev/shm has 2 of 2 MiB free" in found["notes"][0]
    assert "creating shared memory segment" in pair(found, 0, 1)["collective"]["error"]
    assert "docker: --shm-size=1g" in pair(found, 0, 1)["collective"]["error"]
    assert pair(found, 0, 1)["staged"]["ok"] is True


@pytest.mark.nightly
def test_the_time_for_all_of_it(servbadge: Bare, program: Path) -> None:
    servbadge.put(**{"fault.pair.0-1": "hang"})
    began = time.monotonic()
    found = run(servbadge, program, "--quick", "--timeout-s", "2.5", code=1)
    assert time.monotonic() - began < 60
    assert pair(found, 0, 1)["bytes"]["outcome"] == "not run"
    assert "the time limit of the test, 2.5 s" in pair(found, 2, 3)["collective"]["error"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_is_ended_in_the_middle(servbadge: Bare, program: Path, number: signal.Signals) -> None:
    servbadge.put(**{"fault.pair.0-1": "hang"})
    process = start(servbadge, program, "--quick")

    def end() -> None:
        assert len(processes(servbadge)) == 2
        process.send_signal(number)

    out, _ = when(process, "pair 3-2: copy through the host: ok", end)
    if number == signal.SIGTERM:
        assert process.returncode == 1
        assert json.loads(out)["errors"][0]["what"] == "interrupted by SIGTERM; the rest was not run"
        assert list(servbadge.hardware.parent.glob("nccl_p2p.*")) == []
    deadline = time.monotonic() + 5
    while processes(servbadge) and time.monotonic() < deadline:
        time.sleep(0.05)


def test_a_process_that_cannot_be_killed(module: Callable[[str], Any]) -> None:
    class Stuck:
        pid = 1 << 30

        def wait(self, timeout: float) -> int:
            raise subprocess.TimeoutExpired("stuck", timeout)

    nccl_watch = module("nccl_watch")
    options = argparse.Namespace(timeout_s=60, step_timeout_s=None, quick=True, libraries=None, journal=None)
    watch = nccl_watch.Watch(options, "none")
    try:
        watch.kill(Stuck())
        answer = watch.run([nccl_watch.own_step(0, options)])["own 0"]
    finally:
        watch.close()
    assert watch.left_behind == [1 << 30]
    assert (answer["ok"], answer["outcome"]) == (None, "not run")
    assert "does not end after SIGKILL" in answer["error"]


def test_gpus_by_nvml_and_by_cuda(module: Callable[[str], Any]) -> None:
    def named(devices: list[str], of_nvml: list[tuple[str | None, bool]]) -> Any:
        options = argparse.Namespace(quick=True)
        watch = argparse.Namespace(devices={}, lost={}, progress=lambda _: None)
        made = module("nccl_tiers").Examination(options, watch)
        keys = ("uuid", "name", "compute_mode", "processes")
        gpus = [dict.fromkeys(keys) | {"bus_id": place, "mig": mig} for place, mig in of_nvml]
        made.name_gpus([{"bus_id": place} for place in devices], gpus)
        return made, [(gpu["index"], gpu["cuda_device"], gpu["bus_id"]) for gpu in made.document["gpus"]], watch

    one, two = "0000:06:00.0", "0000:07:00.0"
    assert named([one, two], [])[1] == [(0, 0, one), (1, 1, two)]
    assert named([two, one], [("0000" + one, False), ("0000" + two, False)])[2].devices == {"0": 1, "1": 0}
    _, gpus, watch = named([one, two], [(one, False), (None, False)])  # NVML has no bus id for a lost GPU
    assert (gpus[1], watch.lost) == ((1, 1, two), {})
    made, _, watch = named([two], [(one, True), (two, True)])
    assert watch.lost == {0: "NVML lists GPU 0, CUDA does not"}
    assert made.document["notes"][1].startswith("GPU 1 has MIG enabled: CUDA uses one instance of it, and instances")


# A real GPU


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_a_real_gpu(tmp_path: Path) -> None:
    """Needs an NVIDIA GPU, its driver, CUDA's runtime and NCCL on this machine: pytest -m gpu."""
    argv = [sys.executable, str(ROOT / "scripts/nccl_p2p.py"), "--quick", "--journal", str(tmp_path / "journal")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr + done.stdout
    assert all(gpu["own"]["ok"] for gpu in found["gpus"])
    assert found["all_reduce"]["ok"] is True
