"""Trains on one node of several: host/node_train.py, on all of them at once."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rigwright.engine import onhost_program
from rigwright.engine.host_run import HostRun
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.features.nodes import interfaces, training_facts as node_training
from rigwright.features.nodes.facts import Node
from rigwright.features.nodes.training_facts import NodeTraining

NAME = "training"
REDUCE_S, START_S = 180, 150
"""Limits of the all-reduce, and of the start of each of both trainings, as in node_train.py."""

LEFT_S = 60
"""After so long without this machine the training of a node ends by itself."""


class Rendezvous(Struct, frozen=True):
    """What all nodes of a training know: the nodes in their order, their numbers of GPUs, and the id of the run. The
    first node is the host."""

    nodes: Sequence[Node]
    gpus: Sequence[int]
    run: str


def train(run: HostRun, where: Rendezvous, seconds: float, python: str, user: str) -> NodeTraining:
    """Trains on the host of a run, first alone, then with the others; returns its document. No process stays on it.

    `seconds`: of both trainings together. `python`: its interpreter. `user`: as whom root trains; "": the user who logs
    in. Raises HostError, Unreachable.
    """
    number = [node.name for node in where.nodes].index(run.host.name)
    own, master = where.nodes[number], where.nodes[0]
    limit_s = REDUCE_S + 2 * START_S + round(seconds) + 60
    words = ["--python", python, "--run", where.run, "--node", str(number), "--nodes", str(len(where.nodes))]
    words += ["--first-rank", str(sum(where.gpus[:number])), "--gpus", str(where.gpus[number])]
    words += ["--ranks", str(sum(where.gpus)), "--address", own.address, "--master", master.address]
    words += ["--port", str(master.port), "--seconds", f"{seconds / 2:g}", "--timeout-s", str(limit_s)]
    words += ["--user", user] if user else []
    for name, value in interfaces.environment(own).items():
        words += ["--set", f"{name}={value}"]
    program = OnhostProgram("node_train.py", words, limit_s + 30, NAME, watched_s=LEFT_S)
    return onhost_program.result(run, program, node_training.trained)
