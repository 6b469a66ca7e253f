"""nccl_load.py as on a GPU host, over the simulated libraries: speeds follow limits and links, and a hang ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.simulators.nvml.bare import Bare
from rigwright.core.command import Result
from rigwright.facts.nccl.load import Load, measured

SHORT = ("--processes", "1", "--rounds", "1", "--round-s", "0.4")


def run(driver: Bare, folder: Path, *words: str, code: int = 0) -> Load:
    """Runs the program, which must exit with `code`; returns its document as the fact reads it."""
    env = {**driver.env(), "TMPDIR": str(folder)}
    argv = [sys.executable, "-I", str(folder / "nccl_load.py"), *SHORT, *words]
    done = subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    found = measured.parse(Result(0, done.stdout.encode()))
    assert isinstance(found, Load)
    assert found.outcome == ("ok", "failed", "could not run")[code]
    return found


@pytest.mark.nightly
def test_speeds_and_sensors_of_gpus_that_brake(rig_3090: Bare, folder: Path) -> None:
    free = run(rig_3090, folder)
    assert [gpu.index for gpu in free.gpus] == [0, 1, 2]
    (one,) = free.rounds
    assert one.tflops is not None
    assert one.sensors is not None
    assert len(one.copies or ()) == 6
    assert one.all_reduce_gb_s
    rig_3090.put(**{f"gpu{number}__throttle": "0x88" for number in range(3)})
    (capped,) = run(rig_3090, folder, "--without", "copies,collective").rounds
    assert capped.tflops is not None
    assert capped.sensors is not None
    assert max(capped.tflops) < 0.9 * min(one.tflops)
    assert (capped.copies, capped.all_reduce_gb_s) == (None, None)
    for before, after in zip(one.sensors, capped.sensors, strict=True):
        assert (after.clock_mhz or 9999) < (before.clock_mhz or 0)
        assert (after.power_w or 9999) < (before.power_w or 0)
        assert (after.reasons or 0) & 0x88 == 0x88  # the power supply asks for it
        assert (before.reasons or 0) & 0x88 == 0


def test_a_hang_ends_and_the_products_are_measured(rig_3090: Bare, folder: Path) -> None:
    pairs: dict[str, Any] = {f"{key}.0-1": value for key, value in (("fault.pair", "hang"), ("p2p", 0))}
    rig_3090.put(**pairs)
    found = run(rig_3090, folder, "--step-timeout-s", "4", "--without", "collective", code=1)
    assert [error.where for error in found.errors] == ["copies"]
    assert "no end within 4 s" in found.errors[0].what
    assert found.rounds[0].tflops is not None
    assert found.left_behind == ()


def test_without_a_driver_it_could_not_run(rig_3090: Bare, folder: Path) -> None:
    rig_3090.load_driver("none")
    found = run(rig_3090, folder, code=2)
    assert [error.where for error in found.errors] == ["CUDA"]


@pytest.mark.parametrize(
    ("program", "word", "value", "said"),
    [
        ("nccl_load.py", "--rounds", "0", "--processes and --rounds are 1 or more"),
        ("nccl_load.py", "--processes", "-1", "--processes and --rounds are 1 or more"),
        ("nccl_load.py", "--round-s", "nan", "--round-s is up to 60"),
        ("nccl_load.py", "--round-s", "0", "--round-s is up to 60"),
        ("nccl_load.py", "--libraries", "/nowhere", "--libraries /nowhere: no such folder"),
        ("nccl_load.py", "--without", "fans", "--without knows copies, collective"),
        ("nccl_p2p.py", "--pairs", "0-0", "is not a pair of GPUs such as 0-1"),
        ("nccl_p2p.py", "--pairs", "x", "is not a pair of GPUs such as 0-1"),
        ("stress.py", "--seconds", "0", "--seconds is from 1 to 86400"),
        ("stress.py", "--seconds", "nan", "--seconds is from 1 to 86400"),
        ("stress.py", "--without", "fans", "--without knows collective"),
    ],
)
def test_words_that_cannot_be_meant(folder: Path, program: str, word: str, value: str, said: str) -> None:
    argv = [sys.executable, str(folder / program), word, value]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{program}: error: " in done.stderr
    assert said in done.stderr
