"""Attack 21: a user of the host named a process that uses a GPU so that nobody could read which processes use the
GPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rigwright.core.command import Result
from rigwright.facts.gpu import gpus as gpu

PROGRAM = """
import ctypes, sys
device = open(sys.argv[1])
ctypes.CDLL(None).prctl(15, b"train\\nnow", 0, 0, 0)  # PR_SET_NAME
print(flush=True)
sys.stdin.read()
"""


def test_a_name_with_a_newline(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    words = [word.replace("/dev/nvidia", f"{tmp_path}/nvidia") for word in gpu.holders.command.argv]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "nvidia0")], stdin=pipe, stdout=pipe
    ) as process:
        assert process.stdout
        process.stdout.readline()
        done = subprocess.run(words, capture_output=True, timeout=60, check=False)
        process.communicate()
    assert gpu.holders.parse(Result(done.returncode, done.stdout)) == (gpu.Process(process.pid, "train"),)
