"""host/nccl_nodes.py: an all-reduce over three nodes, which are processes with the simulated NCCL; the bytes go over
TCP."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.simulators.cuda.bare import add_cuda
from lab.simulators.nvml.bare import Bare, bare
from tests.features.nodes.host.test_node_link import free_port

VERSION = "535.261.03"


@pytest.fixture(scope="module")
def drivers() -> Iterator[list[Bare]]:
    """Yields the drivers of three machines of four GPUs; the last one has another NCCL."""
    with tempfile.TemporaryDirectory(prefix="rigwright-nodes.") as name:
        folder = Path(name)
        folder.chmod(0o755)
        made = [add_cuda(bare("servbadge", VERSION, folder / str(number)), VERSION) for number in range(2)]
        yield [*made, add_cuda(bare("servbadge", VERSION, folder / "2"), VERSION, "2.22.3+cuda12.4")]


def _run(folder: Path, drivers: list[Bare], made_in: Path, gpus: int = 2, **settings: str) -> list[dict[str, Any]]:
    """Returns what each node wrote, with its exit code and NCCL's log."""
    port, running, nodes = free_port(), [], len(drivers)
    for number, driver in enumerate(drivers):
        words = (
            f"--run r1 --node {number} --nodes {nodes} --first-rank {gpus * number} --gpus {gpus} --mib 4 --port {port}"
        )
        words += f" --ranks {gpus * nodes} --address 127.0.0.{number + 1} --master 127.0.0.1 --write {made_in}/{number}"
        argv = [sys.executable, str(folder / "nccl_nodes.py"), *words.split()]
        env = {**driver.env(), "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(made_in / f"log{number}"), **settings}
        running.append(subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL))
    codes = [one.wait(60) for one in running]
    made = []
    for number, code in enumerate(codes):
        log = made_in / f"log{number}"
        text = log.read_text() if log.exists() else ""
        made.append({**json.loads((made_in / f"{number}").read_text()), "code": code, "log": text})
    return made


@pytest.mark.nightly
def test_three_processes_sum_and_say_how_fast(
    module: Callable[[str], Any], folder: Path, drivers: list[Bare], tmp_path: Path
) -> None:
    found = _run(folder, [*drivers[:2], drivers[0]], tmp_path, NCCL_SOCKET_IFNAME="=lo")
    assert [(one["stage"], one["ok"], one["error"], one["code"]) for one in found] == [("done", True, None, 0)] * 3
    assert [(one["version"], one["gpus"], one["ranks"]) for one in found] == [("2.21.5", 2, 6)] * 3
    for one in found:
        assert 0.001 < one["busbw_gb_s"] < 1000
        assert one["latency_us"] > 1
    transports = module("nccl_log").transports
    ways = [transports(one["log"]) for one in found]
    assert {ends: way["kind"] for ends, way in ways[0].items()} == {(0, 1): "P2P", (1, 2): "NET", (5, 0): "NET"}
    assert (ways[1][1, 2]["transport"], ways[1][3, 4]["transport"]) == ("NET/Socket/0", "NET/Socket/0")
    assert "Using [0]lo:127.0.0.1<0>" in found[0]["log"]


def test_another_nccl_is_named_before_anything_connects(folder: Path, drivers: list[Bare], tmp_path: Path) -> None:
    first, second = _run(folder, [drivers[0], drivers[2]], tmp_path, gpus=1)
    assert (first["stage"], first["error"], first["code"]) == ("meet", "node 1 has NCCL 2.22.3, this one 2.21.5", 1)
    assert (second["stage"], second["error"]) == ("meet", "node 0 has another NCCL than 2.22.3")


def test_without_a_library(folder: Path, drivers: list[Bare], tmp_path: Path) -> None:
    path = tmp_path / "found"
    words = (
        "--run r --node 0 --nodes 2 --first-rank 0 --gpus 1 --ranks 2 --port 1 --address 127.0.0.1 --master 127.0.0.1"
    )
    argv = [
        sys.executable,
        str(folder / "nccl_nodes.py"),
        *words.split(),
        "--write",
        str(path),
        "--libraries",
        str(tmp_path),
    ]
    done = subprocess.run(argv, env=drivers[0].env(), check=False, timeout=30)
    found = json.loads(path.read_text())
    assert (done.returncode, found["missing"], found["stage"]) == (1, True, "start")
    assert "was not found below" in found["error"]
