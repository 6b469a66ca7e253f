"""NVIDIA's nccl-tests, run by the real runner over the simulated GPUs, and their findings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.hardware.rigfile import describe
from lab.simulators.cuda.bare import add_cuda
from lab.simulators.nvml.bare import bare
from rigwright import catalogue
from rigwright.checks import Finding, nccl_programs as checks
from rigwright.core.command import Result
from rigwright.core.errors import UsageError
from rigwright.engine.p2p.nccl_tests import Programs
from rigwright.facts import Fact, FactStore, driver, parsed, pci
from rigwright.facts.nccl import nccl_tests as nccl_programs
from rigwright.facts.pci import PciGpu
from tests.cli.run_command import run_command
from tests.paths import ROOT

RUNNER = ROOT / "onhost" / "nccl_programs.py"
VERSION = "535.261.03"


def ran(fact: Fact[Any], environment: dict[str, str], *words: str) -> Any:
    """Returns the runner's document, parsed as a host's output."""
    argv = [sys.executable, str(RUNNER), *words]
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return parsed(fact, Result(0, done.stdout))


def judged(check: Callable[..., Any], fact: Fact[Any], document: Any, rig: str, loaded: str = VERSION) -> list[Finding]:
    """Returns the findings of the check for a document of that rig."""
    known = catalogue.rig(rig, "test")
    bus = tuple(
        PciGpu(one["bus_id"], catalogue.model(known.gpus[one["position"]]).pci_ids[0], "nvidia")
        for one in describe(rig)["gpus"]
    )
    store = FactStore({fact: document, driver.loaded_version: loaded, pci.gpus: bus})
    return list(check(store, rig=known))


# NVIDIA's nccl-tests


@pytest.fixture
def nccl_tests(tmp_path: Path) -> Callable[..., Any]:
    """Returns `nccl_tests(rig, keys, *words)`: the document of the lab's all_reduce_perf and sendrecv_perf."""

    def run(rig: str, keys: dict[str, Any], *words: str, names: str = "all_reduce_perf sendrecv_perf") -> Any:
        simulated = add_cuda(bare(rig, VERSION, tmp_path / rig), VERSION)
        simulated.put(**keys)
        built = tmp_path / "nccl-tests" / "build"
        built.mkdir(parents=True)
        for name in names.split():
            shutil.copy(ROOT / "lab/simulators/cuda/nccl_tests.py", built / name)
            (built / name).chmod(0o755)
        count = str(len(describe(rig)["gpus"]))
        return ran(nccl_programs.nccl_tests, simulated.env(), "--gpus", count, "--at", str(built.parent), *words)

    return run


@pytest.mark.parametrize(
    ("rig", "keys", "verdicts", "seen", "fix"),
    [
        ("servbadge", {}, ("pass", "pass"), "GB/s bus bandwidth, up to 256 MiB, by P2P/direct pointer; data right", ""),
        (
            "servbadge",
            {"fault.pair.0-1": "corrupt"},
            ("fail", "fail"),
            " wrong values, first at 8 MiB",
            "stop training",
        ),
        ("rig-3090", {"nccl.irq_hang": 1}, ("fail", "pass"), "no end within 3 s, no size was completed", "iommu=pt"),
        ("rig-3090", {"gpu1.fault": 15}, ("fail", "fail"), "lab: Test CUDA failure", ""),
    ],
)
def test_nccl_tests_over_a_rig(
    nccl_tests: Callable[..., Any], rig: str, keys: dict[str, Any], verdicts: tuple[str, ...], seen: str, fix: str
) -> None:
    document = nccl_tests(rig, keys, "--program-timeout-s", "3" if "nccl.irq_hang" in keys else "30")
    found = judged(checks.nccl_tests, nccl_programs.nccl_tests, document, rig)
    assert tuple(one.verdict for one in found) == verdicts, found
    assert [one.subject for one in found] == ["all_reduce_perf", "sendrecv_perf"]
    assert seen in found[0].seen
    assert fix in found[0].fix
    assert document.left_behind == ()


def test_one_program_or_none(nccl_tests: Callable[..., Any], tmp_path: Path) -> None:
    document = nccl_tests("rig-3090", {}, names="sendrecv_perf")
    one, other = judged(checks.nccl_tests, nccl_programs.nccl_tests, document, "rig-3090")
    assert (one.verdict, one.subject, other.verdict) == ("unknown", "all_reduce_perf", "pass")
    assert str(tmp_path / "nccl-tests") in one.cause
    nothing = ran(
        nccl_programs.nccl_tests,
        {**os.environ, "HOME": f"{tmp_path}/home", "PATH": "/bin"},
        "--gpus",
        "2",
    )
    (found,) = judged(checks.nccl_tests, nccl_programs.nccl_tests, nothing, "rig-3090")
    assert (found.verdict, found.seen) == ("unknown", "not run: no all_reduce_perf and no sendrecv_perf on the host")
    assert found.cause == f"looked in PATH, /usr/local/bin, {tmp_path}/home/nccl-tests/build, /opt/nccl-tests/build"
    assert "--nccl-tests=FOLDER" in found.fix


def script(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("text", "verdict", "seen"),
    [
        ("echo '#  size count type time algbw busbw colour'", "unknown", "a column 'colour' that is not known"),
        ("true", "unknown", "it printed no row"),
        ("yes", "fail", "its output does not end"),
        ("kill -SEGV $$", "fail", "no output (signal 11)"),
        (
            "echo 'x: error while loading shared libraries: libnccl.so.2: cannot' >&2; exit 127",
            "unknown",
            "libnccl.so.2",
        ),
        ("printf '\\033[31mfailure\\033[0m <b>\\n'; exit 3", "fail", "\ufffd[31mfailure\ufffd[0m <b> (exit status 3)"),
        ("echo 'CUDA driver version is insufficient for CUDA runtime version'; exit 2", "fail", "insufficient"),
        ("(setsid sleep 300 &) ; sleep 300", "fail", "no end within 2 s"),
    ],
)
def test_programs_that_misbehave(tmp_path: Path, text: str, verdict: str, seen: str) -> None:
    """Each program gives a finding within the time limit, and no process is left in any session."""
    for name in ("all_reduce_perf", "sendrecv_perf"):
        script(tmp_path, name, text if name == "all_reduce_perf" else "true")
    began = time.monotonic()
    mark = {**os.environ, "RIGWRIGHT_TEST_MARK": str(tmp_path)}
    words = ("--gpus", "2", "--at", str(tmp_path), "--program-timeout-s", "2")
    document = ran(nccl_programs.nccl_tests, mark, *words)
    assert time.monotonic() - began < 60
    found = judged(checks.nccl_tests, nccl_programs.nccl_tests, document, "rig-3090")[0]
    assert (found.verdict, found.subject) == (verdict, "all_reduce_perf")
    assert seen in found.seen
    assert found.fix
    assert left(str(tmp_path)) == []


def left(mark: str) -> list[str]:
    """Returns the processes that have that text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes() and path.parent.name != str(os.getpid()):
                found.append((path.parent / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_the_runner_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    script(tmp_path, "all_reduce_perf", "setsid sleep 300 & echo $$ >$(dirname $0)/began; sleep 300")
    mark = {**os.environ, "RIGWRIGHT_TEST_MARK": str(tmp_path), "TMPDIR": str(tmp_path)}
    argv = [sys.executable, str(RUNNER), "--gpus", "2", "--at", str(tmp_path)]
    runner = subprocess.Popen(argv, env=mark, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (tmp_path / "began").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    runner.terminate()
    assert runner.wait(20) == 1
    assert left(str(tmp_path)) == []
    assert sorted(one.name for one in tmp_path.iterdir()) == ["all_reduce_perf", "began"]


# The output table, in every layout

HEAD_OLD = "#       size  count  type  redop   time  algbw  busbw  error   time  algbw  busbw  error\n"
HEAD_NEW = "#       size  count  type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong\n"


@pytest.mark.parametrize(
    ("text", "rows", "wrong"),
    [
        (HEAD_OLD + " 8192 2048 float sum 35.9 0.23 0.40 2e-07 36.1 0.23 0.41 0e+00\n", [(8192, 0.41)], 0),
        (HEAD_OLD + " 8192 2048 float sum 35.9 0.23 0.40 N/A 36.1 0.23 0.41 N/A\n", [(8192, 0.41)], None),
        (HEAD_OLD + " 8192 2048 float 35.9 0.23 0.40 4e-07 36.1 0.23 0.41 0e+00\n# Out of bounds values : 7 FAILED\n",
         [(8192, 0.41)], 7),
        (HEAD_NEW + " 8192 2048 float sum -1 35.9 0.23 0.40 0 36.1 0.23 0.41 0\n", [(8192, 0.41)], 0),
        (HEAD_NEW + " 8192 2048 float none -1 35.9 0.23 0.40 3 36.1 0.23 0.41 N/A\n", [(8192, 0.41)], 3),
        (HEAD_NEW + " 8192 2048 float sum -1 35.9 0.23 0.40 1e+06 36.1 0.23 0.41 0\n", [(8192, 0.41)], 1000000),
        ("size time algbw busbw\n(B) (us) (GB/s) (GB/s)\n 65_536 46.80 1.40 2.45\n", [(65536, 2.45)], None),
        ("# size count type redop root cputime algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong "
         "i_min i_max i_p99 i_cv%\n"
         " 8 2 float sum -1 9.1 1.0 1.5 0 9.0 9.2 9.2 0.1 9.3 1.0 1.6 0 9.0 9.4 9.4 0.2\n", [(8, 1.6)], 0),
        (HEAD_NEW + "node:31:31 [0] NCCL INFO Connected all rings\n\n# Avg bus bandwidth : 3\n", [], None),
        (HEAD_NEW + " 8192 2048 float sum -1 35.9 0.23 0.40 0 36.1 0.23 0.41 0\n 16384 4096 float su", [(8192, 0.41)],
         0),
        ("", [], None),
    ],
)  # fmt: skip
def test_tables(text: str, rows: list[tuple[int, float]], wrong: int | None) -> None:
    table = nccl_programs.read_table(text)
    assert [(row.size_bytes, row.busbw_gb_s) for row in table.rows] == rows
    assert table.wrong == wrong


@pytest.mark.parametrize(
    "row",
    [
        " 8192 2048 float sum -1 35.9 0.23 0.40 0 36.1 0.23",
        " 8192 2048 float sum -1 x 35.9 0.23 0.40 0 36.1 0.23 0.41 0",
        " 8192 2048 float sum -1 35.9 fast 0.40 0 36.1 0.23 0.41 0",
        " 8192 2048 float sum -1 35.9 0.23 0.40 inf 36.1 0.23 0.41 0",
        " 8192 2048 float sum -1 35.9 0.23 nan 0 36.1 0.23 0.41 0",
        " 8192 2048 float sum -1 0.0 inf inf 0 36.1 0.23 0.41 0",
        " 8192 2048 float sum -1 35.9 0.23 -1 0 36.1 0.23 0.41 0",
    ],
)
def test_rows_that_cannot_be_read(row: str) -> None:
    with pytest.raises(ValueError, match="cannot read the row"):
        nccl_programs.read_table(HEAD_NEW + row + "\n")


# The requested programs


def test_a_path_that_says_nothing() -> None:
    with pytest.raises(UsageError, match="does not say where on the host") as caught:
        Programs("nccl-tests/build")
    assert "--nccl-tests" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said", "wanted"),
    [
        ({"nccl_tests": "usual"}, "--nccl-tests: belongs to the peer-to-peer test in full", "--tags p2p --nccl-tests"),
        ({"tags": "p2p", "nccl_tests": "built"}, "--nccl-tests: built does not say where", "begins with / or ~/"),
        ({"tags": "p2p", "nccl_tests": "usual", "watch": True}, "--watch: only reads", "leave --watch out"),
    ],
)
def test_words_that_do_not_go_together(
    words: dict[str, Any], said: str, wanted: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command("verify", host="gpu", **words) == 1
    text = "".join(capfd.readouterr())
    assert said in text
    assert wanted in text
