"""Several hosts as nodes: the rounds of measurements, what the history has of links, and when nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rigwright.core.errors import HostError, Unreachable
from rigwright.facts import FactStore, network
from rigwright.facts.network import Interface, Network
from rigwright.features.nodes import facts, run as nodes
from rigwright.features.nodes.facts import Link, LinkEnd, LinkFigures, Node, NodesMeasured, Received
from rigwright.features.nodes.links import Meeting
from rigwright.features.nodes.variables import Nodes
from rigwright.features.training_smoke.run import SmokeOptions
from rigwright.history import History
from tests.history.test_history import run_of

FOUR = tuple(Node(name, f"10.0.0.{number}", "ens1", 10000, "") for number, name in enumerate("abcd", 1))


@dataclass
class FakeNode:
    """A host that measures without a network: `away` begins with that round."""

    name: str
    away: int = 99
    report: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(error=None))
    store: FactStore | None = None
    port: int = 29400

    @property
    def host(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.name, address="192.0.2.1", origin=lambda _name: "hosts.yml:3")

    @property
    def bound(self) -> SimpleNamespace:
        return SimpleNamespace(desired=SimpleNamespace(of_features={"nodes": Nodes(port=self.port)}))


def _nodes(monkeypatch: pytest.MonkeyPatch, away: dict[str, int]) -> tuple[list[Any], list[list[str]]]:
    """Four hosts, and by round those that were asked."""
    runs, asked = [FakeNode(name, away.get(name, 99)) for name in "abcd"], list[list[str]]()

    def run_hosts(able: Sequence[FakeNode], action: Callable[[Any], Iterable[object]], *, activity: str) -> None:
        assert activity == f"links {len(asked) + 1}/3"
        asked.append([run.name for run in able])
        for run in able:
            if len(asked) >= run.away:
                run.report.error = Unreachable(run.name, "no answer")
                continue
            list(action(run))

    def measure(run: Any, meeting: Meeting) -> LinkEnd:
        assert run.name in (meeting.a.name, meeting.b.name)
        rate = 9.0 if run.name == meeting.a.name else 8.0
        return LinkEnd(1, "listen", "", "", 29400, 4, "done", Received(1, 2.0, rate), 50.0, {}, None)

    monkeypatch.setattr(nodes.pool, "run_hosts", run_hosts)
    monkeypatch.setattr(nodes.node_links, "measure", measure)
    return runs, asked


def test_every_pair_is_measured_once_and_no_host_twice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, asked = _nodes(monkeypatch, {})
    found = nodes.links(runs, FOUR)
    assert sorted((link.a, link.b) for link in found) == [(a, b) for a in "abcd" for b in "abcd" if a < b]
    assert [sorted(names) for names in asked] == [list("abcd")] * 3
    assert {(link.a_to_b_gbit_s, link.b_to_a_gbit_s, link.error) for link in found} == {(8.0, 9.0, "")}


def test_a_host_that_goes_away_is_in_no_further_round(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, asked = _nodes(monkeypatch, {"b": 2})
    found = nodes.links(runs, FOUR)
    assert [len(names) for names in asked] == [4, 4, 2]
    (broken,) = [link for link in found if link.error]
    assert (broken.at, broken.error) == ("b", facts.GONE)
    measured = nodes.train(runs, NodesMeasured("", FOUR, found), SmokeOptions(60))
    assert (measured.trainings, measured.untrained) == ((), "not trained: b failed before")


def test_nothing_is_trained_without_a_connection() -> None:
    runs: list[Any] = [FakeNode(name) for name in "ab"]
    links = (Link("a", "b", None, None, None, "b", "no answer"),)
    found = nodes.train(runs, NodesMeasured("", FOUR[:2], links), SmokeOptions(60))
    assert found.untrained == "not trained: no connection a - b"


def test_two_ports_are_refused() -> None:
    interface = Interface("ens1", "ethernet", True, 10000, 1500, "", "", "", ("10.0.0.1/24",))
    store = FactStore({network.network: Network((interface,), ()), network.hcas: ()})
    runs: list[Any] = [FakeNode(name, port=port) for name, port in (("a", 29400), ("b", 29401))]
    for run in runs:
        run.store = store
    with pytest.raises(HostError, match="the nodes have different ports: a 29400, b 29401"):
        nodes.choose_nodes(runs)


def test_figures_come_back_from_the_history_and_those_of_another_form_are_left_out(tmp_path: Path) -> None:
    figures = {"peer": "b", "interface": "ens1", "sent_gbit_s": 9.4, "received_gbit_s": 9.3}
    with History.open(tmp_path / "history.sqlite") as past:
        for number, value in enumerate(([figures], [{"peer": "b"}], [{**figures, "sent_gbit_s": 8.0}])):
            past.record(run_of(number, {facts.links.name: value}))
        machine = past.named("servbadge")
        found = nodes.earlier_links(past, machine)
        assert [one.figures for one in found] == [LinkFigures("b", "ens1", sent, 9.3) for sent in (9.4, 8.0)]
        assert [one.run for one in found] == ["r0", "r2"]
        assert nodes.earlier_links(past, None) == ()
