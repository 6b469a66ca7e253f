"""Measures the lab for `scripts/bench --lab`.

The measurements are boot to ssh of one host and of 32, memory per host, and nvidia-smi with 16 GPUs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from lab.cli import commands
from lab.host import cgroups
from lab.simulators.nvml.bare import bare
from lab.simulators.nvml.real_smi import nvidia_smi

RIG, SMI_RIG, SMI = "servbadge", "dgx-2", "535.261.03"
MANY, ONE_ROUNDS, SMI_ROUNDS = 32, 5, 15
GOALS = (
    ("one host", 3.0, "s"),
    (f"{MANY} hosts", 25.0, "s"),
    ("memory per host", 30.0, "MB"),
    ("nvidia-smi -q", 0.3, "s"),
)


def up(name: str, count: int | None) -> float:
    """Returns the seconds until the user can log in to new hosts, with the images in the cache."""
    began = time.monotonic()
    commands.up(name=name, rig=RIG, count=count, say=lambda _: None)
    return time.monotonic() - began


def memory_mb(names: list[str]) -> float:
    """Returns megabytes per host: the proportional share (Pss) of its processes, and its part of the lab's daemons."""
    daemons = cgroups.groups() - set(names)
    own = sum(_pss_kib(pid) for name in names for pid in cgroups.processes(name))
    shared = sum(_pss_kib(pid) for group in daemons for pid in cgroups.processes(group))
    return (own + shared) * 1024 / 1e6 / len(names)


def _pss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # the process has ended
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def smi_s() -> float:
    """Returns the median time of `nvidia-smi -q` with 16 GPUs, in seconds."""
    binary, times = nvidia_smi(SMI), []
    with tempfile.TemporaryDirectory(prefix="rigwright-bench-") as folder:
        driver = bare(SMI_RIG, SMI, Path(folder) / "gpus")
        for _ in range(SMI_ROUNDS):
            began = time.monotonic()
            subprocess.run([str(binary), "-q"], env=driver.env(), stdout=subprocess.DEVNULL, check=True, timeout=60)
            times.append(time.monotonic() - began)
    return statistics.median(times)


def main() -> int:
    """Measures, prints a line per goal, and removes the hosts. Returns the exit code."""
    names = [f"bench{number}" for number in range(1, MANY + 1)]
    try:
        up("bench", None)  # builds images that the cache lacks
        ones = []
        for _ in range(ONE_ROUNDS):
            commands.down(name="bench", say=lambda _: None)
            ones.append(up("bench", None))
        commands.down(name="bench", say=lambda _: None)
        many = up("bench", MANY)
        time.sleep(5)
        memory = memory_mb(names)
    finally:
        for name in ("bench", *names):
            commands.down(name=name, say=lambda _: None)
    found = (statistics.median(ones), many, memory, smi_s())
    load = os.getloadavg()[0]
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs, load {load:.1f} at the end, rig {RIG}\n")
    for (what, goal, unit), value in zip(GOALS, found, strict=True):
        print(f"{'met   ' if value <= goal else 'MISSED'}  {what:16} {value:7.2f} {unit:2}  goal {goal:g} {unit}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
