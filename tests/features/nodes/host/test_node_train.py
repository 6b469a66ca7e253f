"""host/node_train.py: two nodes with a stand-in for the interpreter; marked `network` with the real torch on the
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
from rigwright.features.nodes.interfaces import environment
from rigwright.features.nodes.training_facts import NodeTraining, trained
from tests.features.nodes.host.test_node_link import free_port
from tests.features.training_smoke.host.interpreters import real_torch, stand_in

NAMES = ("a", "b")
NODES = tuple(Node(name, f"127.0.0.{number}", "lo", None, "") for number, name in enumerate(NAMES, 1))


def _start(folder: Path, number: int, python: str, port: int, *more: str) -> subprocess.Popen[bytes]:
    words = ["--python", python, "--run", "r1", "--node", str(number), "--nodes", "2", "--first-rank", str(2 * number)]
    words += ["--gpus", "2", "--ranks", "4", "--address", NODES[number].address, "--master", "127.0.0.1"]
    words += ["--port", str(port), "--cpu", *more]
    for name, value in environment(NODES[number]).items():
        words += ["--set", f"{name}={value}"]
    return subprocess.Popen(
        [sys.executable, str(folder / "node_train.py"), *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def _measured(folder: Path, python: str, *more: str, timeout_s: float = 60) -> NodesMeasured:
    """What two nodes found that ran at the same time."""
    port = free_port()
    running = [_start(folder, number, python, port, *more) for number in (0, 1)]
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


def test_each_node_alone_then_all_together(folder: Path, tmp_path: Path) -> None:
    measured = _measured(folder, stand_in(tmp_path, "well"), "--seconds", "1")
    assert [[rank.rank for rank in one.together.ranks] for one in measured.trainings if one] == [[0, 1], [2, 3]]
    assert [(finding.verdict, finding.seen) for finding in _findings(measured)] == [
        ("info", "not run: on the processor"),
        ("pass", "fp32, 10 steps: loss 1 -> 0.25, loss and weights equal on all ranks"),
        ("pass", "fp32, 10 steps: loss 1 -> 0.25, loss and weights equal on all ranks"),
        ("pass", "2000 samples/s, 1000 for each GPU"),
        ("pass", "4000 samples/s in fp32, efficiency 100% of the nodes alone"),
    ]


def test_the_node_that_fails_is_named_by_the_others(folder: Path, tmp_path: Path) -> None:
    measured = _measured(folder, stand_in(tmp_path, "fails"), "--seconds", "1")
    of_a = _findings(measured)[2]
    assert (of_a.subject, of_a.verdict) == ("training on 2 nodes", "unknown")
    assert of_a.seen == "stopped because of another node: b: rank 2 at connect: RuntimeError: no route"
    of_b = _findings(NodesMeasured("b", measured.nodes, measured.links, (), measured.trainings))[2]
    assert (of_b.verdict, of_b.seen) == ("fail", "rank 2 at connect: RuntimeError: no route")


def test_losses_that_differ_between_nodes_and_a_low_efficiency_are_named(folder: Path, tmp_path: Path) -> None:
    *_, loss, _, speed = _findings(_measured(folder, stand_in(tmp_path, "nodes differ, slow"), "--seconds", "1"))
    assert (loss.verdict, loss.symptom) == ("fail", "nccl.wrong_data")
    assert "rank 2 differs from rank 0" in loss.seen
    assert (speed.verdict, speed.seen) == ("info", "1000 samples/s in fp32, efficiency 25% of the nodes alone")


def test_nothing_stays_when_nobody_watches(folder: Path, tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    watched.touch()
    os.utime(watched, (time.time() - 100, time.time() - 100))
    program = _start(
        folder, 0, stand_in(tmp_path, "hangs"), free_port(), "--watched", str(watched), "--watched-s", "50"
    )
    out, _ = program.communicate(timeout=20)
    assert (program.returncode, out) == (1, b"")
    mine = subprocess.run(["pgrep", "-f", str(tmp_path / "python")], capture_output=True, check=False)
    assert mine.stdout == b""


@pytest.mark.network
@pytest.mark.timeout(1500)
def test_the_real_torch_meets_over_c10d(folder: Path, tmp_path: Path) -> None:
    measured = _measured(folder, real_torch(tmp_path), "--seconds", "10", timeout_s=600)
    for one in measured.trainings:
        assert one is not None
        assert (one.alone.run.outcome, one.together.run.outcome) == ("done", "done"), json.dumps(one.together.run.said)
    of = checks.trained(FactStore({driver.loaded_version: ""}), nodes_measured=measured)
    assert {finding.verdict for finding in of} == {"pass"}
