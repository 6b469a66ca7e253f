"""scripts/bench: its table, its goals, the part of a processor, and the profile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.bench import no_change, processor_profile, processor_quota
from lab.bench.measured import Measured
from tests.paths import ROOT


def measured(name: str, wall_s: float, round_trips: int | None = None) -> Measured:
    """A command's measurement from one run."""
    return Measured(name, ("true",), wall_s=[wall_s], cpu_s=[0.1], peak_mib=[500.0], round_trips=round_trips)


def test_table_and_goals() -> None:
    rows = [measured("ssh true", 0.2), measured("bench.yml, 11 steps", 0.3, 1)]
    rows += [measured("provision.yml, with checks", 0.6, 3), measured("bench.yml, 11 steps, before", 0.9, 4)]
    rows += [measured("invoke --list", 0.1)]
    lines = no_change.table(rows).splitlines()
    assert lines[2].split() == ["bench.yml,", "11", "steps", "0.300", "1.50", "0.100", "500", "1"]
    assert lines[5].split() == ["invoke", "--list", "0.100", "0.100", "500"]
    assert no_change.verdicts(rows) == [
        "met     bench.yml, 11 steps: at most 1.7 x ssh true",
        "met     bench.yml, 11 steps: at most 2 round trips",
        "MISSED  provision.yml, with checks: at most 2.5 x ssh true",
        "MISSED  provision.yml, with checks: at most 2 round trips",
        "met     invoke --list: at most 0.2 s",
    ]
    assert no_change.verdicts(rows, whole_processor=False) == no_change.verdicts(rows)[:-1]


def test_a_version_of_a_commit_is_what_its_commands_import(tmp_path: Path) -> None:
    version = no_change.before("HEAD", tmp_path)
    one = version.commands()[1]
    assert one.name == "provision.yml, with checks, before"
    argv = [no_change.PYTHON, "-c", "import rigwright; print(rigwright.__file__)"]
    assert no_change._once(one, argv=argv).startswith(str(tmp_path))
    argv, env = [one.argv[0], "--list"], {"PYTHONPATH": str(tmp_path)}
    listed = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert "fleet.check" in listed.stdout


def test_a_part_of_a_processor(as_root: None) -> None:  # noqa: ARG001
    def used() -> float:
        began, before = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < 0.5:
            pass
        return (time.process_time() - before) / (time.perf_counter() - began)

    with processor_quota.limited(20):
        part = used()
        child = subprocess.run(["cat", "/proc/self/cgroup"], capture_output=True, text=True, check=True).stdout
    assert part < 0.25
    assert "-bench" in child
    assert "-bench" not in Path("/proc/self/cgroup").read_text()


PROGRAM = """
import sys, threading, time
def spin(until_s):
    while time.thread_time() < until_s: pass
if __name__ == "__main__":
    import spinning
    other = threading.Thread(target=spin, args=[0.2]); other.start(); other.join()
    sys.exit(3)
"""


def test_a_profile_counts_imports_and_threads(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    spin = "import time\nend = time.thread_time() + 0.3\nwhile time.thread_time() < end: pass\n"
    (tmp_path / "spinning.py").write_text(spin)
    out = tmp_path / "profile"
    argv = [sys.executable, f"{ROOT}/lab/bench/processor_profile.py", str(out), str(tmp_path / "program.py")]
    for _ in range(2):
        assert subprocess.run(argv, env={"PYTHONPATH": str(tmp_path)}, check=False).returncode == 3
    assert len([json.loads(line) for line in out.read_text().splitlines()]) == 2
    seconds = processor_profile.mean(out)
    assert seconds["import: standard library"] == pytest.approx(0.3, abs=0.06)
    assert seconds["other"] == pytest.approx(0.2, abs=0.06)
    assert processor_profile.table(seconds, 0.5).splitlines()[-1].endswith("sampled; 500.0 ms without sampling")
