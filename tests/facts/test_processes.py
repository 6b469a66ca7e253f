"""The observation of processes on GPUs, of real processes whose names and words are hostile, with an nvidia-smi of the
test."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rigwright.core.command import Result
from rigwright.facts import parsed
from rigwright.facts.gpu.processes import Observation, observation

JOB = """
import ctypes, sys
device = open(sys.argv[1])
ctypes.CDLL(None).prctl(15, b"a) R 1 (\\n\\x1b[2J", 0, 0, 0)  # PR_SET_NAME
print("epoch 1", flush=True)
while sys.argv[2] == "works":
    pass
sys.stdin.read()
"""
SMI = """#!/bin/sh
case $1 in
*compute-apps*) echo "$JOB_PID, GPU-2"; echo "[N/A], GPU-1";;
*) printf 'GPU-1, 0, 0\\nGPU-2, 100, [N/A]\\n';;
esac
"""


@contextmanager
def job(folder: Path, what: str) -> Iterator[int]:
    """Yields the process id of a job that has nvidia1 open, and `waits` or `works`."""
    (folder / "nvidia1").touch()
    words = [sys.executable, "-c", JOB, str(folder / "nvidia1"), what, "\x1b]0;x\x07" + "w" * 9000]
    output = (folder / "output").open("w+b")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, stderr=output) as process:
        while not (folder / "output").read_bytes():
            pass
        os.utime(folder / "output", (0, 1_000_000_000))
        try:
            yield process.pid
        finally:
            process.kill()


def observed(folder: Path, pid: int, smi: str = SMI) -> Observation:
    """Returns the observation of the machine in which /dev/nvidia* are files of the folder."""
    (folder / "nvidia-smi").write_text(smi)
    (folder / "nvidia-smi").chmod(0o755)
    words = [word.replace("/dev/nvidia", f"{folder}/nvidia") for word in observation.command.argv]
    words[words.index("3")] = "0.5"
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "JOB_PID": str(pid)}
    done = subprocess.run(words, capture_output=True, timeout=120, check=False, env=env)
    seen = parsed(observation, Result(done.returncode, done.stdout, done.stderr))
    assert isinstance(seen, Observation), (seen, done.stderr)
    return seen


def test_a_process_that_waits(tmp_path: Path) -> None:
    with job(tmp_path, "waits") as pid:
        seen = observed(tmp_path, pid)
    (process,) = seen.processes
    assert (process.pid, process.user, process.gpus) == (pid, pwd.getpwuid(os.getuid()).pw_name, ("GPU-2",))
    assert (process.state, process.processor_percent) == ("S", 0)
    assert process.name.startswith("a) R 1 (")
    assert "\x1b" not in process.name + process.command
    assert (len(process.command), 0 < process.age_s < 600) == (200, True)
    assert process.output_age_s is not None
    assert process.output_age_s > 86400
    assert [(gpu.busy_percent, gpu.memory_percent) for gpu in seen.gpus] == [
        ((0, 0), (0, 0)), ((100, 100), (None, None)),
    ]  # fmt: skip


def test_a_process_that_computes(tmp_path: Path) -> None:
    with job(tmp_path, "works") as pid:
        (process,) = observed(tmp_path, pid).processes
    assert (process.state, process.processor_percent > 5) == ("R", True)


def test_without_an_answer_of_nvidia_smi_the_open_file_names_no_gpu(tmp_path: Path) -> None:
    with job(tmp_path, "waits") as pid:
        seen = observed(tmp_path, pid, "#!/bin/sh\necho Unable to determine the device handle; exit 15\n")
    assert [(process.pid, process.gpus) for process in seen.processes] == [(pid, ())]
    assert seen.gpus == ()
