"""Builds of torch, examined by the real program in an interpreter with a stand-in for torch, and their findings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.hardware.rigfile import describe
from rigwright import catalogue
from rigwright.checks import Finding
from rigwright.core.command import Result
from rigwright.facts import FactStore, driver, parsed, pci
from rigwright.facts.pci import PciGpu
from rigwright.features.training.torch_build import runs_on
from rigwright.features.training_smoke import checks as training_smoke
from rigwright.features.training_smoke.facts import Smoke, trained
from tests.paths import ROOT

VERSION = "535.261.03"
RIG = "v100-pcie"


@pytest.fixture
def torch(folder: Path, tmp_path: Path) -> Callable[..., list[Finding]]:
    """Returns `torch(said)`: the findings for an interpreter whose torch stand-in behaves as `said`."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}/tests/stand_ins" exec {sys.executable} "$@"\n')
    python.chmod(0o755)

    def findings(said: dict[str, Any], path: str = str(python)) -> list[Finding]:
        return judged(examined(folder, path, TORCH_STAND_IN=json.dumps(said)))

    return findings


def examined(folder: Path, path: str, **environment: str) -> Smoke:
    """Returns the document about an interpreter. The stand-in for torch has no torchrun, so its training fails."""
    argv = [sys.executable, str(folder / "train_smoke.py"), "--python", path, "--gpus", "2", "--seconds", "1"]
    done = subprocess.run(argv, env={**os.environ, **environment}, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found = parsed(trained, Result(0, done.stdout))
    assert isinstance(found, Smoke), found
    return found


def judged(document: Smoke) -> list[Finding]:
    """Returns the findings for a document of a rig with V100."""
    known = catalogue.rig(RIG, "test")
    bus = tuple(
        PciGpu(one["bus_id"], catalogue.model(known.gpus[one["position"]]).pci_ids[0], "nvidia")
        for one in describe(RIG)["gpus"]
    )
    return list(training_smoke.torch(FactStore({trained: document, driver.loaded_version: VERSION, pci.gpus: bus})))


NO_VOLTA = {"flags": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", "version": "2.13.0+cu128", "cuda": "12.8"}
WHEELS = "-m pip install 'torch==2.14.*', from PyTorch's cu126 wheels"


@pytest.mark.parametrize(
    ("said", "verdicts", "seen", "fix"),
    [
        ({}, ("pass",), "torch 2.9.1+cu126, NCCL 2.27.5: kernels for sm_70", ""),
        (NO_VOLTA, ("fail",), "torch 2.13.0+cu128 has no sm_70 kernels: only sm_75, sm_80, sm_86", WHEELS),
        ({"cuda": None, "version": "2.13.0+cpu"}, ("fail",), "torch 2.13.0+cpu is a build for processors", WHEELS),
        ({"cuda": None, "hip": "6.3", "version": "2.9+rocm"}, ("fail",), "built for AMD's ROCm 6.3", WHEELS),
        ({"cuda": "13.0", "version": "2.13.0"}, ("fail",), f"torch 2.13.0, CUDA 13.0, and driver {VERSION} is loaded",
         WHEELS),
        ({"import_error": "libcudart.so.12: cannot open"}, ("fail",), "torch cannot be imported: OSError: libcudart",
         WHEELS),
        ({"nccl": None}, ("fail",), "was built without NCCL", WHEELS),
        ({"nccl": [2, 25, 1]}, ("warn",), "torch 2.9.1+cu126, NCCL 2.25.1", "nvidia-nccl-cu12>=2.27.5"),
        ({"gpus": [["Tesla V100", 7, 0]]}, ("fail",), "sees 1 of 2 GPUs", "nvidia-smi"),
        ({"error": "Found no NVIDIA driver on your system"}, ("fail",), "Found no NVIDIA driver", "nvidia-smi"),
    ],
)  # fmt: skip
def test_torches(
    torch: Callable[..., list[Finding]], said: dict[str, Any], verdicts: tuple[str, ...], seen: str, fix: str
) -> None:
    found = torch(said)
    assert tuple(one.verdict for one in found) == verdicts, found
    assert seen in found[0].seen
    assert fix in found[0].fix


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/etc", "/etc: Permission denied, for "),
        ("/bin/true", "/bin/true does not answer as a Python does: no word"),
        ("no-such-python", "no-such-python: No such file or directory"),
    ],
)
def test_what_is_no_interpreter(torch: Callable[..., list[Finding]], path: str, seen: str) -> None:
    (found,) = torch({}, path)
    assert found.verdict == "unknown"
    assert found.seen.startswith(f"not run: {seen}")
    assert "~/venv/bin/python" in found.fix


def test_an_interpreter_without_torch(folder: Path) -> None:
    (found,) = judged(examined(folder, sys.executable))
    assert (found.verdict, found.seen) == ("fail", f"{sys.executable} has no torch")
    assert found.fix.startswith(f"{sys.executable} -m pip install")


@pytest.mark.parametrize(
    ("capability", "architectures", "fits"),
    [
        ("7.0", "sm_50 sm_70", True),
        ("7.0", "sm_75 sm_80", False),
        ("7.0", "compute_60", True),
        ("8.9", "sm_80", True),
        ("8.0", "sm_86", False),
        ("9.0", "sm_90a", True),
        ("10.3", "sm_100", True),
        ("10.3", "sm_100a", False),
        ("10.3", "sm_100f", True),
        ("12.0", "sm_100 sm_90a", False),
        ("12.0", "sm_90 compute_90", True),
        ("12.0", "gfx90a words", False),
    ],
)
def test_which_kernels_run(capability: str, architectures: str, fits: bool) -> None:
    assert runs_on(capability, architectures.split()) is fits
