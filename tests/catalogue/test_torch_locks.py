"""torch for the GPUs of a host: the locks agree with the lines, and every architecture gets a torch or the reason why
there is none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rigwright import catalogue
from rigwright.catalogue import torch_locks
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError
from rigwright.core.numbers import numbers
from tests.paths import ROOT


def _torch(driver: str, *keys: str) -> tuple[str, str]:
    found = torch_locks.torch_for([catalogue.models()[key] for key in keys], Driver(driver))
    return found.line, found.lock.torch


@pytest.mark.parametrize(
    ("driver", "keys", "line"),
    [
        ("535", ["gtx-970"], "cu126"),
        ("580", ["gtx-1080"], "cu126"),
        ("535", ["v100-sxm2-16gb"], "cu126"),
        ("580", ["v100-sxm2-16gb"], "cu126"),
        ("535", ["t4"], "cu126"),
        ("580", ["t4"], "cu130"),
        ("535", ["rtx-3090"], "cu126"),
        ("580", ["rtx-3090"], "cu130"),
        ("580", ["rtx-4090"], "cu130"),
        ("595", ["h100-sxm5"], "cu130"),
        ("570", ["rtx-5090"], "cu128"),
        ("580", ["rtx-5090"], "cu130"),
        ("580", ["v100-sxm2-16gb", "rtx-3090"], "cu126"),
        ("580", ["v100-sxm2-16gb", "rtx-5090"], "cu128"),
        ("580", ["t4", "rtx-5090"], "cu130"),
    ],
)
def test_the_line_for_these_gpus(driver: str, keys: list[str], line: str) -> None:
    assert _torch(driver, *keys)[0] == line
    assert _torch(driver, *reversed(keys))[0] == line


@pytest.mark.parametrize(
    ("driver", "keys", "words"),
    [
        ("470", ["k80"], "has no kernels for Tesla K80 (Kepler)"),
        ("470", ["v100-sxm2-16gb"], "torch 2.7.1 (cu126) needs driver 525"),
        ("580", ["gtx-1080", "rtx-5090"], "(cu126) has no kernels for NVIDIA GeForce RTX 5090 (Blackwell)"),
    ],
)
def test_why_there_is_none(driver: str, keys: list[str], words: str) -> None:
    with pytest.raises(HostError) as caught:
        _torch(driver, *keys)
    assert words in str(caught.value)


@pytest.mark.parametrize("line", torch_locks.locks())
def test_a_lock_is_of_its_line_and_whole(line: str) -> None:
    lock, wheels = torch_locks.locks()[line], catalogue.torch_wheels().wheels[line]
    assert numbers(wheels.first) <= numbers(lock.torch)
    assert wheels.last is None or numbers(lock.torch)[:2] <= numbers(wheels.last)
    assert torch_locks.kernels(line, lock.torch)
    runtime = {one.version for one in lock.wheels if one.name.startswith("nvidia-cuda-runtime")}
    assert [version.startswith(f"{wheels.cuda}.") for version in runtime] == [True]
    assert {"3.10", "3.11", "3.12", "3.13"} <= set(lock.pythons)
    for python in lock.pythons:
        names = [one.name for one in lock.of(python)]
        assert len(names) == len(set(names))
        assert {"torch", "triton", "sympy", "filelock", "typing-extensions"} <= set(names)
        assert any(name.startswith("nvidia-nccl-cu") for name in names)
        assert 2e9 < sum(one.bytes for one in lock.of(python)) < 6e9


def test_the_script_prints_the_requirements_of_a_line() -> None:
    words = [sys.executable, ROOT / "scripts/torch-lock", "--python", "3.11", "--requirements"]
    printed = subprocess.run([*words, "cu126"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert printed == [wheel.requirement for wheel in torch_locks.locks()["cu126"].of("3.11")]
    assert any(line.startswith("torch==2.7.1 --hash=sha256:") for line in printed)
    none = subprocess.run([*words[:3], "3.14", words[4], "cu126"], capture_output=True, text=True, check=False)
    assert (none.returncode, none.stderr) == (1, "error scripts/torch-lock: cu126 has no torch for Python 3.14\n")
