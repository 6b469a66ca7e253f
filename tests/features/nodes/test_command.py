"""`invoke train.smoke --nodes` on the command line, and its table; what it does on hosts is in
tests/end_to_end/test_nodes.py."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rigwright.cli import runner
from rigwright.core.errors import HostError, RigwrightError, UsageError
from rigwright.features.nodes import command as train_nodes, table
from rigwright.features.nodes.facts import Link, Node, NodesMeasured
from rigwright.features.training_smoke.command import train_smoke
from rigwright.features.training_smoke.options import TrainSmokeOptions
from rigwright.features.training_smoke.run import SmokeOptions


@pytest.mark.parametrize("flag", ["links", "unlike"])
def test_an_option_of_several_nodes_needs_nodes(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run", lambda _options, prepare: prepare("id"))
    with pytest.raises(RigwrightError) as caught:
        train_smoke(TrainSmokeOptions(host="gpu", **{flag: True}))
    assert (caught.value.where, caught.value.expected) == (f"--{flag}", "--nodes")


@pytest.mark.parametrize("number", [1, 33])
def test_one_host_or_too_many(number: int) -> None:
    jobs: list[Any] = [None] * number
    with pytest.raises(UsageError, match="1 host\n" if number == 1 else f"{number} hosts"):
        train_nodes.act(jobs, None, TrainSmokeOptions(nodes=True), SmokeOptions(60))


def test_nodes_that_differ_are_refused_or_named() -> None:
    warnings: list[str] = []
    text = SimpleNamespace(warn=warnings.append)
    found = ("driver: c has 550.54.14; a, b 535.183.01",)
    with pytest.raises(HostError, match=r"nothing was started: driver: c has 550\.54\.14"):
        train_nodes._unlike(found, accepted=False, text=text)
    train_nodes._unlike(found, accepted=True, text=text)
    assert warnings == ["the nodes differ: driver: c has 550.54.14; a, b 535.183.01"]


def _measured(number: int, slow: str = "") -> NodesMeasured:
    names = [f"node{at:02}" for at in range(1, number + 1)]
    hcas = ("mlx5_0:1", "mlx5_1:1")
    nodes = [Node(name, f"192.168.100.{at}", "enp129s0f0np0", 100000, "", hcas) for at, name in enumerate(names, 1)]
    pairs = [(a, b) for at, a in enumerate(names) for b in names[at + 1 :]]
    links = [Link(a, b, *((0.94, 0.93) if slow in (a, b) else (23.4, 23.1)), 61.5) for a, b in pairs]
    return NodesMeasured("", tuple(nodes), tuple(links))


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("number", [3, 12])
def test_the_table_names_the_slow_node(columns: int, number: int) -> None:
    out = io.StringIO()
    table.show(Console(file=out, width=columns, force_terminal=True, color_system=None), _measured(number, "node02"))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= columns, text
    assert text.count("slow") == 1, text
    words = " ".join(text.split())
    assert "node01 - node02" in words
    assert ("38 links more, all of them faster" in words) == (number == 12)
