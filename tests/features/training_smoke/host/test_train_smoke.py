"""host/train_smoke.py: with a stand-in for the interpreter; marked `network` with the real torch on the processor;
marked `gpu` on GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.checks import Finding
from rigwright.core.command import Result
from rigwright.facts import FactStore, driver, parsed
from rigwright.facts.nccl.nccl_tests import Way
from rigwright.features.training_smoke import checks as training_smoke
from rigwright.features.training_smoke.facts import Smoke, trained
from tests.features.training_smoke.host.interpreters import real_torch, stand_in
from tests.paths import ROOT


def _run(folder: Path, *words: str, timeout_s: float = 60, start_s: float | None = None) -> Smoke:
    """Returns the document of the program."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import train_smoke as t; "
    code += f"t.START_S = {start_s}; " if start_s is not None else ""
    code += "sys.exit(t.main())"
    argv = [sys.executable, "-c", code, *words]
    done = subprocess.run(argv, capture_output=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    found = parsed(trained, Result(0, done.stdout))
    assert isinstance(found, Smoke), found
    return found


def _findings(document: Smoke) -> list[Finding]:
    store = FactStore({trained: document, driver.loaded_version: None})
    return [*training_smoke.learned(store), *training_smoke.speed(store)]


@pytest.mark.parametrize(
    ("gpus", "runs"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3, 4]), (6, [1, 2, 3, 4, 6]), (10, [1, 2, 3, 4, 8, 10])],
)
def test_how_many_gpus_the_runs_have(module: Callable[[str], Any], gpus: int, runs: list[int]) -> None:
    assert module("train_smoke").counts(gpus) == runs


def test_every_rank_of_every_run_is_told(folder: Path, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    alive.touch()
    os.utime(alive, (1, 1))
    found = _run(folder, "--python", stand_in(tmp_path, "well"), "--gpus", "4", "--seconds", "3", "--alive", str(alive))
    runs = [(run.gpus, len(run.ranks), run.samples_s) for run in found.runs]
    assert runs == [(1, 1, 1000), (2, 2, 2000), (3, 3, 3000), (4, 4, 4000)]
    assert {finding.verdict for finding in _findings(found)} == {"pass"}


def test_a_training_that_hangs_is_ended_and_named(folder: Path, tmp_path: Path) -> None:
    found = _run(folder, "--python", stand_in(tmp_path, "hangs"), "--gpus", "4", "--seconds", "3", start_s=1)
    assert [run.run.outcome for run in found.runs] == ["done", "hang"]
    assert found.left_behind == ()
    bad = [finding for finding in _findings(found) if finding.verdict != "pass"]
    seen = [(finding.subject, finding.verdict) for finding in bad]
    assert seen == [("training on 2 GPUs", "fail"), ("training on 4 GPUs", "unknown")]
    assert "rank 0 at connect; killed" in bad[0].seen


@pytest.mark.parametrize(
    ("samples_s", "kind", "verdict", "causes"),
    [
        (2900.0, "P2P", "pass", ""),
        (2300.0, "P2P", "pass", ""),
        (2200.0, "P2P", "warn", "1. a PCIe link"),
        (2200.0, "SHM", "warn", "1. no peer access"),
    ],
)
def test_a_speed_up_that_misses_the_figure_of_the_rig_by_a_quarter_is_a_warning(
    folder: Path, tmp_path: Path, samples_s: float, kind: Any, verdict: str, causes: str
) -> None:
    found = _run(folder, "--python", stand_in(tmp_path, "well"), "--gpus", "3", "--seconds", "3")
    *fewer, three = found.runs
    ranks = tuple(replace(rank, samples_s=samples_s) for rank in three.ranks)
    run = replace(three.run, transports={"0-1": Way(kind, kind)})
    store = FactStore({trained: replace(found, runs=(*fewer, replace(three, ranks=ranks, run=run)))})
    rig = catalogue.rig("rig-3090", "a test")
    last = list(training_smoke.speed(store, rig=rig))[-1]
    assert (last.verdict, last.expected) == (verdict, "3 times one GPU, in the training of a real model")
    assert last.seen.startswith(f"{samples_s:.0f} samples/s")
    assert f"{samples_s / 1000:.2f} times one GPU" in last.seen
    assert last.cause.startswith(causes)


def test_losses_that_differ_are_named(folder: Path, tmp_path: Path) -> None:
    found = _run(folder, "--python", stand_in(tmp_path, "ranks differ"), "--gpus", "2", "--seconds", "2")
    last = next(finding for finding in _findings(found) if finding.subject == "training on 2 GPUs")
    assert (last.verdict, last.symptom) == ("fail", "nccl.wrong_data")


def test_no_interpreter(folder: Path, tmp_path: Path) -> None:
    found = _run(folder, "--python", str(tmp_path / "none"), "--gpus", "1", "--seconds", "1")
    assert (found.examined.outcome, found.build, found.runs) == ("not run", None, ())
    assert [finding.verdict for finding in _findings(found)] == ["unknown"]


def test_ddp_smoke_says_that_torchrun_is_missing() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "ddp_smoke.py")]
    environ = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run(words, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 2
    assert "run it with torchrun" in done.stderr


def _learns(found: Smoke, backend: str) -> dict[str, Any]:
    """Asserts that the real torch trained well; returns the figures."""
    assert [run.run.outcome for run in found.runs] == ["done"] * len(found.runs), json.dumps(
        [run.run.said for run in found.runs]
    )
    for run in found.runs:
        assert {rank.backend for rank in run.ranks} == {backend}
        assert len({rank.loss_last for rank in run.ranks}) == 1
    learned = [finding for finding in _findings(found) if finding.check == "training_smoke.learned"]
    assert [finding.verdict for finding in learned] == ["pass"] * len(found.runs), learned
    return {str(run.gpus): run.samples_s for run in found.runs}


@pytest.mark.network
@pytest.mark.timeout(1500)
def test_the_real_torch_trains_on_the_processor(folder: Path, tmp_path: Path) -> None:
    found = _run(folder, "--python", real_torch(tmp_path), "--gpus", "2", "--cpu", "--seconds", "20", timeout_s=400)
    assert set(_learns(found, "gloo")) == {"1", "2"}


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_the_real_torch_trains_on_every_gpu(folder: Path) -> None:
    """The interpreter is RIGWRIGHT_TRAIN_PYTHON, else that of /opt/train."""
    python = os.environ.get("RIGWRIGHT_TRAIN_PYTHON", "/opt/train/bin/python")
    count = subprocess.run(
        [python, "-c", "import torch; print(torch.cuda.device_count())"], capture_output=True, text=True, check=True
    )
    found = _run(folder, "--python", python, "--gpus", count.stdout.strip(), "--seconds", "60", timeout_s=800)
    figures = _learns(found, "nccl")
    assert all(speed > 0 for speed in figures.values())
