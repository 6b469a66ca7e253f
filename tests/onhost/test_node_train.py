"""onhost/node_train.py: two nodes with a stand-in for the interpreter; marked `network` with the real torch on the
processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rigwright.checks import Finding
from rigwright.core.command import Result
from rigwright.facts import FactStore, driver, parsed
from rigwright.features.nodes import checks
from rigwright.features.nodes.facts import Link, Node, NodesMeasured
from rigwright.features.nodes.run import environment
from rigwright.features.nodes.training_facts import NodeTraining, trained
from tests.onhost.real_torch import real_torch
from tests.onhost.test_node_link import _free_port
from tests.paths import ROOT

PROGRAM = ROOT / "onhost" / "node_train.py"
NAMES = ("a", "b")
NODES = tuple(Node(name, f"127.0.0.{number}", "lo", None, "") for number, name in enumerate(NAMES, 1))
STAND_IN = """#!{python}
import json, os, sys, time
does, words = {does!r}, dict(word.split("=", 1) for word in sys.argv[3:] if word.startswith("--") and "=" in word)
assert sys.argv[1:3] == ["-m", "torch.distributed.run"], sys.argv
assert os.environ["GLOO_SOCKET_IFNAME"] == "lo" and os.environ["NCCL_SOCKET_IFNAME"] == "=lo"
nodes, own = int(words["--nnodes"]), int(words["--nproc_per_node"])
folder = sys.argv[sys.argv.index("--write") + 1]
number = 0
if nodes > 1:
    assert words["--rdzv_backend"] == "c10d" and words["--rdzv_endpoint"].startswith("127.0.0.1:")
    number = int(words["--local_addr"].rpartition(".")[2]) - 1
    assert ("is_host=true" in words["--rdzv_conf"]) == (number == 0)
for rank in range(number * own, (number + 1) * own):
    found = dict(rank=rank, world=nodes * own, stage="done", device="cpu", capability=None, precision="fp32", backend="gloo", torch="2.7.1")
    found.update(steps=10, batch=128, seconds=1.0, samples_s=900.0 * nodes * own, loss_first=1.0, loss_last=0.25, weights="ab" * 32, error=None)
    if does == "fails" and nodes > 1 and number:
        found.update(stage="connect", samples_s=None, loss_last=None, weights=None, error="RuntimeError: no route")
    elif does == "fails" and nodes > 1:
        found.update(stage="connect", samples_s=None, loss_last=None, weights=None)
    if "differs" in does:
        found.update(loss_last=0.25 + number)
    if "slow" in does and nodes > 1:
        found.update(samples_s=900.0)
    json.dump(found, open(os.path.join(folder, "rank.%d" % rank), "w"))
if does == "hangs":
    time.sleep(600)
sys.exit(1 if does == "fails" and nodes > 1 else 0)
"""


def _stand_in(folder: Path, does: str) -> str:
    path = folder / "python"
    path.write_text(STAND_IN.format(python=sys.executable, does=does))
    path.chmod(0o755)
    return str(path)


def _start(number: int, python: str, port: int, *more: str) -> subprocess.Popen[bytes]:
    words = ["--python", python, "--run", "r1", "--node", str(number), "--nodes", "2", "--first-rank", str(2 * number)]
    words += ["--gpus", "2", "--ranks", "4", "--address", NODES[number].address, "--master", "127.0.0.1"]
    words += ["--port", str(port), "--cpu", *more]
    for name, value in environment(NODES[number]).items():
        words += ["--set", f"{name}={value}"]
    return subprocess.Popen([sys.executable, str(PROGRAM), *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _measured(python: str, *more: str, timeout_s: float = 60) -> NodesMeasured:
    """What two nodes found that ran at the same time."""
    port = _free_port()
    running = [_start(number, python, port, *more) for number in (0, 1)]
    found = []
    for program in running:
        out, _ = program.communicate(timeout=timeout_s)
        assert program.returncode == 0
        document = parsed(trained, Result(0, out))
        assert isinstance(document, NodeTraining), document
        found.append(document)
    links = (Link("a", "b", 9.4, 9.4, 60.0),)
    return NodesMeasured("a", NODES, links, (), tuple(found))


def _findings(measured: NodesMeasured) -> list[Finding]:
    store = FactStore({driver.loaded_version: ""})
    of = [check(store, nodes_measured=measured) for check in (checks.all_reduce, checks.trained, checks.speed)]
    return [finding for findings in of for finding in findings]


def test_each_node_alone_then_all_together(tmp_path: Path) -> None:
    measured = _measured(_stand_in(tmp_path, "well"), "--seconds", "1")
    assert [[rank.rank for rank in one.together.ranks] for one in measured.trainings if one] == [[0, 1], [2, 3]]
    assert [(finding.verdict, finding.seen) for finding in _findings(measured)] == [
        ("info", "not run: on the processor"),
        ("pass", "fp32, 10 steps: loss 1 -> 0.25, loss and weights equal on all ranks"),
        ("pass", "fp32, 10 steps: loss 1 -> 0.25, loss and weights equal on all ranks"),
        ("pass", "1800 samples/s, 900 for each GPU"),
        ("pass", "3600 samples/s in fp32, efficiency 100% of the nodes alone"),
    ]


def test_the_node_that_fails_is_named_by_the_others(tmp_path: Path) -> None:
    measured = _measured(_stand_in(tmp_path, "fails"), "--seconds", "1")
    of_a = _findings(measured)[2]
    assert (of_a.subject, of_a.verdict) == ("training on 2 nodes", "unknown")
    assert of_a.seen == "stopped because of another node: b: rank 2 at connect: RuntimeError: no route"
    of_b = _findings(NodesMeasured("b", measured.nodes, measured.links, (), measured.trainings))[2]
    assert (of_b.verdict, of_b.seen) == ("fail", "rank 2 at connect: RuntimeError: no route")


def test_losses_that_differ_between_nodes_and_a_low_efficiency_are_named(tmp_path: Path) -> None:
    *_, loss, _, speed = _findings(_measured(_stand_in(tmp_path, "differs, slow"), "--seconds", "1"))
    assert (loss.verdict, loss.symptom) == ("fail", "nccl.wrong_data")
    assert "rank 2 differs from rank 0" in loss.seen
    assert (speed.verdict, speed.seen) == ("info", "900 samples/s in fp32, efficiency 25% of the nodes alone")


def test_nothing_stays_when_nobody_watches(tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    watched.touch()
    os.utime(watched, (time.time() - 100, time.time() - 100))
    program = _start(0, _stand_in(tmp_path, "hangs"), _free_port(), "--watched", str(watched), "--watched-s", "50")
    out, _ = program.communicate(timeout=20)
    assert (program.returncode, out) == (1, b"")
    mine = subprocess.run(["pgrep", "-f", str(tmp_path / "python")], capture_output=True, check=False)
    assert mine.stdout == b""


@pytest.mark.network
@pytest.mark.timeout(1500)
def test_the_real_torch_meets_over_c10d(tmp_path: Path) -> None:
    measured = _measured(real_torch(tmp_path), "--seconds", "10", timeout_s=600)
    for one in measured.trainings:
        assert one is not None
        assert (one.alone.run.outcome, one.together.run.outcome) == ("done", "done"), json.dumps(one.together.run.said)
    of = checks.trained(FactStore({driver.loaded_version: ""}), nodes_measured=measured)
    assert {finding.verdict for finding in of} == {"pass"}
