"""A locked clock that goes back is written down, under a lock that no other user can hold."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rigwright.features.rollback.operations.limits import _LOCK


def lock(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with a folder of this test in place of /run/rigwright, and an nvidia-smi that writes its words
    down."""
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin/nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$*" >>{folder}/smi\n')
    program.chmod(0o755)
    text = _LOCK.replace("/run/rigwright", f"{folder}/run")
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin"}
    return subprocess.run(
        ["sh", "-c", text, "sh", *words], capture_output=True, text=True, env=environment, check=False
    )


def test_after_a_boot_in_which_nothing_set_limits(tmp_path: Path) -> None:
    """/run is empty then, and the lock is one that only root can open."""
    done = lock(tmp_path, "GPU-1", "graphics", "210", "1400")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run/limits.lock").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "run/locked-clocks").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "run/locked-clocks").read_text().startswith("GPU-1 graphics 210 1400 ")


def test_a_lock_that_is_freed_is_no_longer_written_down(tmp_path: Path) -> None:
    lock(tmp_path, "GPU-1", "graphics", "210", "1400")
    lock(tmp_path, "GPU-1", "memory", "405", "9501")
    assert lock(tmp_path, "GPU-1", "graphics", "", "").returncode == 0
    assert [line.split()[:4] for line in (tmp_path / "run/locked-clocks").read_text().splitlines()] == [
        ["GPU-1", "memory", "405", "9501"]
    ]
    assert (tmp_path / "smi").read_text() == "-i GPU-1 -lgc 210,1400\n-i GPU-1 -lmc 405,9501\n-i GPU-1 -rgc\n"
