"""What one node found in a training over several. host/node_train.py, nccl_nodes.py and ddp_smoke.py describe every
key."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from rigwright.core.command import Result
from rigwright.facts import Fact
from rigwright.facts.nccl.document import READ_DOCUMENT, left_document, read_document
from rigwright.facts.nccl.nccl_tests import Run
from rigwright.features.training_smoke.facts import SmokeRun, refuse_odd_ranks

MOST_RANKS = 32 * 64


class Reduced(Struct, frozen=True):
    """NCCL's all-reduce over all nodes, as one node saw it. `stage`: the last stage that began. `busbw_gb_s`: the bus
    bandwidth as nccl-tests define it. `missing`: the host has no library of NCCL or CUDA."""

    stage: Literal["start", "meet", "connect", "sum", "time", "done"]
    node: int
    gpus: int
    ranks: int
    version: str | None
    ok: bool | None
    error: str | None
    mib: int
    busbw_gb_s: float | None
    latency_us: float | None
    missing: bool


class NodeTraining(Struct, frozen=True):
    """The document of node_train.py: the all-reduce, a training of this node alone, and one of all nodes, with the
    ranks of this one."""

    schema: int
    node: int
    nodes: int
    gpus: int
    ranks: int
    python: str
    user: str
    asked_s: float
    nccl: Run
    reduced: Reduced | None
    alone: SmokeRun
    together: SmokeRun
    left_behind: tuple[int, ...]


def _trained(result: Result) -> NodeTraining:
    text = left_document(result, "the training has not run", "the training left no document")
    training = read_document(text, NodeTraining, "training's")
    sizes = 1 <= training.gpus <= training.ranks <= MOST_RANKS and 0 <= training.node < training.nodes
    if not sizes or len(training.left_behind) > 200:
        raise ValueError("more GPUs or nodes than there are")
    for run, most in ((training.alone, training.gpus), (training.together, training.ranks)):
        if run.gpus != most or len(run.ranks) > training.gpus:
            raise ValueError(f"{len(run.ranks)} ranks on {run.gpus} of {most} GPUs")
        refuse_odd_ranks(run, most)
    rates = (training.reduced.busbw_gb_s, training.reduced.latency_us) if training.reduced else ()
    if not all(rate is None or (math.isfinite(rate) and 0 <= rate < 1e12) for rate in rates):
        raise ValueError("a rate that no network has")
    return training


trained = Fact("node_training.trained", READ_DOCUMENT, _trained)
"""The document of one node; it exists on the host only right after the training."""
