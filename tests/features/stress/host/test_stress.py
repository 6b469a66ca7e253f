"""stress.py as on a GPU host, over the simulated libraries: speeds, wrong bits, lost GPUs, hangs, and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from lab.simulators.nvml.bare import Bare
from rigwright import catalogue
from rigwright.core.command import Result
from rigwright.features.stress.facts import Stress, measured

SHORT = ("--seconds", "3", "--step-timeout-s", "15")


def start(driver: Bare, folder: Path, *words: str) -> subprocess.Popen[str]:
    env = {**driver.env(), "TMPDIR": str(folder)}
    argv = [sys.executable, "-I", str(folder / "stress.py"), *SHORT, *words]
    return subprocess.Popen(argv, env=env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(driver: Bare, folder: Path, *words: str, code: int = 0) -> Stress:
    """Runs the program, which must exit with `code`; returns its document as the fact reads it."""
    process = start(driver, folder, *words)
    out, errors = process.communicate(timeout=150)
    assert process.returncode == code, out + errors
    found = measured.parse(Result(0, out.encode()))
    assert isinstance(found, Stress)
    assert found.outcome == ("ok", "failed", "could not run")[code]
    assert found.left_behind == ()
    return found


@pytest.mark.nightly
def test_stages_speeds_and_sensors(servbadge: Bare, folder: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks.jsonl"
    found = run(servbadge, folder, "--marks", str(marks))
    titles = [stage.title for stage in found.stages]
    assert titles == [
        *(f"alone, GPU {number}" for number in range(4)),
        "together, 1 GPU",
        *(f"together, {number} GPUs" for number in (2, 3, 4)),
        "in step",
        "soak",
    ]
    for _, one in found.results("alone"):
        rates = {products.kind: products.tflops for products in one.products}
        assert rates == pytest.approx({"fp32": 14.1, "fp16": 112.4, "fp64": 7.04}, rel=0.02), "a V100 has no TF32"
        assert one.gb_s.memory == pytest.approx(755, rel=0.02)
        assert one.gb_s.to_device == one.gb_s.from_device == pytest.approx(12.6, rel=0.02)
    assert len({json.dumps(one.digests) for _, one in found.results("alone")}) == 1, "the same bits on each GPU"
    (step,) = (stage for stage in found.stages if stage.stage == "in step")
    assert step.all_reduce_gb_s == pytest.approx(125, rel=0.05)
    for gpu in found.gpus:
        (soak,) = (one for _, one in found.results("soak") if one.gpu == gpu.index)
        assert (soak.power_max_w or 0) > 100
        assert None not in (soak.products[0].sm_mean_mhz, soak.core_max_c, soak.memory_max_c)
        assert (gpu.power_limit_w, gpu.slowdown_c, gpu.memory_most_c) == (300, 87, 85)
    lines = [json.loads(line) for line in marks.read_text().splitlines()]
    assert [(line["stage"], line["event"]) for line in lines] == [(t, e) for t in titles for e in ("begin", "end")]


@pytest.mark.nightly
def test_a_gpu_that_is_slow_and_one_that_is_wrong(servbadge: Bare, folder: Path) -> None:
    servbadge.put(gpu1__speed_percent=70, gpu2__wrong_bit=20)
    found = run(servbadge, folder, code=1)
    rates = [next(iter(one.products)).tflops for _, one in found.results("alone")]
    assert rates[1] / rates[0] == pytest.approx(0.7, abs=0.02)
    assert {(event.what, event.gpu) for event in found.events} == {("wrong", 2)}
    assert all("a result differs from the first one, by " in event.text for event in found.events)


@pytest.mark.nightly
def test_a_gpu_that_falls_off_the_bus_and_the_others_go_on(servbadge: Bare, folder: Path) -> None:
    process = start(servbadge, folder, "--seconds", "8")
    assert process.stderr
    for line in process.stderr:
        if line.startswith("together, 1 GPU"):
            servbadge.put(gpu1__fault=15, gpu1__fault__open=15)
            break
    out, _ = process.communicate(timeout=120)
    found = measured.parse(Result(0, out.encode()))
    assert (process.returncode, found.outcome) == (1, "failed")
    lost = [event for event in found.events if event.what == "lost"]
    assert [event.gpu for event in lost] == [1]
    assert lost[0].stage.startswith("together"), lost
    (soak,) = (stage for stage in found.stages if stage.stage == "soak")
    assert (soak.outcome, [one.gpu for one in soak.results]) == ("ok", [0, 2, 3]), "the others are well"


@pytest.mark.nightly
def test_a_hang_of_nccl_ends_and_the_soak_runs(servbadge: Bare, folder: Path) -> None:
    servbadge.put(nccl__irq_hang=1)
    found = run(servbadge, folder, "--step-timeout-s", "4", code=1)
    assert [(event.what, event.stage) for event in found.events] == [("hang", "in step")]
    assert found.stages[-1].outcome == "ok"


@pytest.mark.nightly
def test_without_nccl_there_is_no_all_reduce(servbadge: Bare, folder: Path) -> None:
    found = run(servbadge, folder, "--without", "collective")
    assert [stage.all_reduce_gb_s for stage in found.stages if stage.stage == "in step"] == [None]


def test_a_signal_ends_it_and_leaves_no_process(servbadge: Bare, folder: Path, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    alive.touch()
    os.utime(alive, (1, 1))
    process = start(servbadge, folder, "--seconds", "150", "--alive", str(alive))
    assert process.stderr
    next(line for line in process.stderr if line.startswith("alone, GPU 0"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    assert alive.stat().st_mtime > time.time() - 60, "a recorder that watches this file goes on"
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=90)
    assert time.monotonic() - began < 60
    assert json.loads(out)["errors"] == [{"where": "program", "what": "interrupted by SIGTERM; the rest was not run"}]
    assert not [child for child in children if os.path.exists(f"/proc/{child}")]


class Interrupted:
    """Takes the place of the processes: each step answers at once, and a signal arrives in the stage whose step begins
    so."""

    def __init__(self, program: Any, begins: str, tmp_path: Path) -> None:
        self.program, self.begins, self.folder = program, begins, str(tmp_path)
        self.devices: dict[str, str] = {}
        self.lost: dict[int, str] = {}
        self.left_behind: list[int] = []
        self.closed = False

    def run(self, steps: list[dict[str, Any]]) -> dict[str, Any]:
        if any(one["title"].startswith(self.begins) for one in steps):
            raise self.program.nccl_host.Interrupted("SIGINT")
        return {one["id"]: self.answer(one) for one in steps}

    def answer(self, one: dict[str, Any]) -> dict[str, Any]:
        if one["do"] == "look":
            same = {"name": "V100", "compute_capability": "7.0"}
            devices = [{"bus_id": f"0000:0{at}:00.0", "uuid": f"GPU-{at}", **same} for at in range(2)]
            return {"versions": {}, "libraries": {}, "devices": devices, "peers": [], "lacking": []}
        speeds: dict[str, Any] = {"kinds": {}, "gb_s": {}, "digests": {}, "wrong": []}
        gpus = {str(gpu): speeds for gpu in one["ranks"] or one["gpus"]}
        return {"ok": True, "outcome": "ok", "error": None, "gpus": gpus}

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("begins", "stages"),
    [
        ("CUDA", []),
        ("alone", []),
        ("together", ["alone, GPU 0", "alone, GPU 1"]),
        ("in step", ["alone, GPU 0", "alone, GPU 1", "together, 1 GPU", "together, 2 GPUs"]),
        ("soak", ["alone, GPU 0", "alone, GPU 1", "together, 1 GPU", "together, 2 GPUs", "in step"]),
    ],
)
def test_a_signal_in_any_stage_keeps_what_was_measured_before(
    begins: str,
    stages: list[str],
    tmp_path: Path,
    module: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = module("stress")
    monkeypatch.setattr(program.nccl_host, "on_signals", lambda _handler: None)
    watch = Interrupted(program, begins, tmp_path)
    stress = program.Stress(program.options_of(["--seconds", "1"]), watch)
    code = program.carried_out(stress, watch)
    found = measured.parse(Result(0, capsys.readouterr().out.encode()))
    assert isinstance(found, Stress)
    assert code == 1
    assert [stage.title for stage in found.stages] == stages
    assert [error.what for error in found.errors] == ["interrupted by SIGINT; the rest was not run"]
    assert watch.closed, "its processes are ended"
    for thread in threading.enumerate():
        if isinstance(thread, program.Ticker):
            thread.join(5)
            assert not thread.is_alive(), "nothing of the stage goes on"


def test_without_a_driver_it_could_not_run(servbadge: Bare, folder: Path) -> None:
    servbadge.load_driver("none")
    found = run(servbadge, folder, code=2)
    assert [error.where for error in found.errors] == ["CUDA"]


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_a_real_gpu(folder: Path, tmp_path: Path) -> None:
    """Needs an NVIDIA GPU, its driver, cuBLAS and NCCL on this machine: pytest -m gpu. It sets no limit, and shows the
    document."""
    pynvml.nvmlInit()
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    before = [pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) for gpu in gpus]
    argv = [sys.executable, str(folder / "stress.py"), "--seconds", "60", "--marks", str(tmp_path / "marks.jsonl")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr + done.stdout
    found = measured.parse(Result(0, done.stdout.encode()))
    assert isinstance(found, Stress)
    assert (found.outcome, found.left_behind, found.errors) == ("ok", (), ())
    assert {stage.stage for stage in found.stages} >= {"alone", "soak"}
    rates = [(result.gpu, one) for _stage, result in found.results("soak") for one in result.products]
    assert {number for number, _ in rates} == {gpu.index for gpu in found.gpus}
    for number, products in rates:
        ids = pynvml.nvmlDeviceGetPciInfo(pynvml.nvmlDeviceGetHandleByUUID(found.gpus[number].uuid)).pciDeviceId
        model = catalogue.model_of(f"{ids >> 16:04x}")
        figure = model and model.tflops and getattr(model.tflops, products.kind)
        if model and model.tflops and figure and products.sm_mean_mhz:
            share = products.tflops / (figure * products.sm_mean_mhz / model.tflops.at_mhz)
            assert 0.5 < share < 1.05, f"{products.kind}: {share:.0%} of the model's figure at this clock"
    assert [pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) for gpu in gpus] == before
