"""Times the peer-to-peer test over simulated GPUs for `scripts/bench --p2p`: in rounds, every pair alone, and an older
version.

The program of onhost/ runs over the simulated libraries without a host. Every round of this benchmark runs each variant
once, so that other load affects all of them; the ratio says more than the seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from lab.bench.measured import ROOT, row
from lab.hardware.rigfile import describe
from lab.simulators.cuda.bare import add_cuda
from lab.simulators.nvml.bare import Bare, bare

DRIVER = "535.261.03"
LIMIT_S = 1800
GOALS_S = {4: 15.0, 16: 90.0}
"""Seconds of the whole test in rounds on two cores, by the number of GPUs."""

WIDTHS = (32, 9, 9, 9, 9, 9, 11, 9, 7, 7)


@dataclass
class Variant:
    """A version of the program with options. `runs`: document, CPU seconds and load of each run."""

    name: str
    folder: Path
    words: tuple[str, ...] = ()
    runs: list[tuple[dict[str, Any], float, float]] = field(default_factory=list)

    def run(self, driver: Bare, words: Sequence[str]) -> None:
        """Runs the whole test once. Exits the benchmark if it does not pass."""
        argv = [
            sys.executable,
            "-I",
            str(self.folder / "nccl_p2p.py"),
            "--timeout-s",
            str(LIMIT_S),
            *self.words,
            *words,
        ]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = subprocess.Popen(argv, env=driver.env(), cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            if child.returncode:
                sys.exit(f"error lab.bench.p2p: {self.name}: exit {child.returncode}\n{err.read()[-2000:]}")
            self.runs.append((json.loads(out.read()), used.ru_utime + used.ru_stime, os.getloadavg()[0]))

    def median_s(self) -> float:
        """The median duration of the test, from its document."""
        return float(statistics.median(document["seconds"] for document, _, _ in self.runs))


def programs(folder: Path, revision: str = "") -> Path:
    """Returns a folder with the files of onhost/, as on a host; of a git revision, if one is given."""
    folder.mkdir()
    if revision:
        names = subprocess.run(
            ["git", "ls-tree", "--name-only", revision, "onhost/"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
        for name in names:
            content = subprocess.run(["git", "show", f"{revision}:{name}"], cwd=ROOT, capture_output=True, check=True)
            (folder / Path(name).name).write_bytes(content.stdout)
    else:
        for path in (ROOT / "onhost").glob("nccl_*.py"):
            shutil.copy(path, folder)
    shutil.copy(str(pynvml.__file__), folder)
    return folder


def lines(gpus: int, variants: Sequence[Variant]) -> list[str]:
    """The table of one machine: the medians of each variant, and its ratio to the first one."""
    first = variants[0].median_s()
    made = []
    for one in variants:
        tiers = [
            statistics.median(document["tiers_s"].get(tier, 0) for document, _, _ in one.runs)
            for tier in ("own", "bytes", "collective", "scaling")
        ]
        cpu = statistics.median(cpu_s for _, cpu_s, _ in one.runs)
        load = max(load for _, _, load in one.runs)
        cells = (
            f"{one.median_s():.1f}",
            f"{one.median_s() / first:.2f}",
            f"{cpu:.1f}",
            *(f"{tier:.1f}" for tier in tiers),
        )
        made.append(row(f"{gpus} GPUs, {one.name}", *cells, f"{load:.1f}", str(len(one.runs)), widths=WIDTHS))
    return made


def main(words: Sequence[str]) -> int:
    """Measures: ROUNDS RIGS REVISION (may be empty) and options of the program. Prints the table; returns the exit
    code."""
    rounds, rigs, revision, *options = words
    table = [
        row("", "seconds", "ratio", "CPU s", "own", "bytes", "collective", "scaling", "load", "runs", widths=WIDTHS)
    ]
    goals = []
    with tempfile.TemporaryDirectory(prefix="rigwright-bench-") as name:
        folder = Path(name)
        now = programs(folder / "now")
        for rig in rigs.split(","):
            driver = add_cuda(bare(rig, DRIVER, folder / rig), DRIVER)
            gpus = len(describe(rig)["gpus"])
            variants = [Variant("rounds", now), Variant("every pair alone", now, ("--alone",))]
            if revision:
                variants.append(Variant(revision, programs(folder / f"before-{rig}", revision)))
            with (driver.hardware / "volatile/fabric").open("w") as fabric:  # the fabric manager runs
                fcntl.flock(fabric, fcntl.LOCK_EX)
                for number in range(int(rounds)):
                    for one in variants:
                        if sys.stdout.isatty():
                            print(f"round {number + 1} of {rounds}: {rig}, {one.name}\033[K", end="\r", flush=True)
                        one.run(driver, options)
            table += lines(gpus, variants)
            if gpus in GOALS_S and not options:
                goals.append((gpus, variants[0].median_s()))
    print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}\n")
    print("\n".join(table))
    for gpus, seconds in goals:
        met = "met   " if seconds <= GOALS_S[gpus] else "MISSED"
        print(f"{met}  {gpus} GPUs: {seconds:.1f} s, goal {GOALS_S[gpus]:g} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
