"""Interpreters with torch for the tests of training: the real one, and a stand-in that writes what ranks write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

STAND_IN = """#!{python}
import json, os, sys, time
does, argv = {does!r}, sys.argv[1:]
if os.path.basename(argv[0]) == "torch_build.py":
    build = dict(python="3.11.7", torch="2.7.1+cpu", cuda=None, hip=None, nccl=None, architectures=[], error=None)
    build.update(gpus=[dict(name="V100", capability="7.0")] * 4, missing=False)
    json.dump(build, open(argv[1], "w"))
    sys.exit()
assert argv[:2] == ["-m", "torch.distributed.run"] and any(word.endswith("/ddp_smoke.py") for word in argv), argv
words = dict(word.split("=", 1) for word in argv if word.startswith("--") and "=" in word)
folder, seconds = (argv[argv.index(name) + 1] for name in ("--write", "--seconds"))
nodes, own, number = int(words["--nnodes"]), int(words["--nproc_per_node"]), 0
if nodes > 1:
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo" and os.environ["NCCL_SOCKET_IFNAME"] == "=lo"
    assert words["--rdzv_backend"] == "c10d" and words["--rdzv_endpoint"].startswith("127.0.0.1:")
    number = int(words["--local_addr"].rpartition(".")[2]) - 1
    assert ("is_host=true" in words["--rdzv_conf"]) == (number == 0)
world = nodes * own
for rank in range(number * own, (number + 1) * own):
    found = dict(rank=rank, world=world, stage="done", device="cpu", capability=None, precision="fp32", backend="gloo")
    found.update(torch="2.7.1", steps=10, batch=128, seconds=float(seconds), samples_s=1000.0 * world, loss_first=1.0)
    found.update(loss_last=0.25, weights="ab" * 32, error=None)
    if does == "hangs" and world > 1 or does == "fails" and nodes > 1:
        found.update(stage="connect", samples_s=None, loss_last=None, weights=None)
    if does == "fails" and nodes > 1 and number:
        found.update(error="RuntimeError: no route")
    if "ranks differ" in does:
        found.update(loss_last=0.25 + rank)
    if "nodes differ" in does:
        found.update(loss_last=0.25 + number)
    if "slow" in does and nodes > 1:
        found.update(samples_s=1000.0)
    json.dump(found, open(os.path.join(folder, "rank.%d" % rank), "w"))
if does == "hangs" and world > 1:
    time.sleep(600)
sys.exit(1 if does == "fails" and nodes > 1 else 0)
"""


def stand_in(folder: Path, does: str) -> str:
    """Returns a program that stands in for the interpreter."""
    path = folder / "python"
    path.write_text(STAND_IN.format(python=sys.executable, does=does))
    path.chmod(0o755)
    return str(path)


def real_torch(folder: Path) -> str:
    """Returns an interpreter with torch: that of RIGWRIGHT_CPU_TORCH_PYTHON, else one of an environment in `folder`.

    Downloads 200 MB where the index of this machine has a torch for processors (2.13.0+cpu), else 3 GB.
    """
    if given := os.environ.get("RIGWRIGHT_CPU_TORCH_PYTHON"):
        return given
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = str(folder / "venv/bin/python")
    install = [python, "-m", "pip", "install", "-q", "--no-cache-dir", "torch==2.13.0+cpu"]
    if subprocess.run(install, capture_output=True, check=False).returncode:
        subprocess.run([*install[:-1], "torch"], check=True)
    return python
