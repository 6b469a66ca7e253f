"""Several hosts as the nodes of one training: what each has, the links between them, and the checks of each."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from rigwright.core import host_ranges
from rigwright.core.errors import HostError
from rigwright.core.host_result import HostResult
from rigwright.engine.host_run import HostRun
from rigwright.facts import Fact, driver, network, system
from rigwright.facts.gpu import gpus as gpu
from rigwright.features.nodes import facts, interfaces, links as node_links, training as node_training
from rigwright.features.nodes.facts import DatedLink, Link, LinkEnd, LinkFigures, Node, NodesMeasured, Torch
from rigwright.features.nodes.interfaces import NodeNetwork
from rigwright.features.nodes.links import Meeting
from rigwright.features.nodes.training import Rendezvous
from rigwright.features.nodes.training_facts import NodeTraining
from rigwright.features.nodes.variables import Nodes
from rigwright.features.training_smoke import run as training_smoke
from rigwright.features.training_smoke.run import SmokeOptions
from rigwright.fleet import actions, pool
from rigwright.history import History


def _interpreter(run: HostRun, options: SmokeOptions) -> tuple[str, str]:
    """The Python interpreter that trains on the host, "" if it has none, and its user, "" for the user who logs in."""
    training = None if options.python else run.bound.desired.of_features.get("training")
    return (f"{training.path}/bin/python", training.owner) if training else (options.python, "")


def _torch_fact(run: HostRun, options: SmokeOptions) -> Fact[Torch] | None:
    python, user = _interpreter(run, options)
    return facts.torch(python, user) if python else None


def look(run: HostRun, options: SmokeOptions, links_only: bool) -> Iterator[HostResult]:
    """Reads the network of a node, and without `links_only` its GPUs and its torch. Raises HostError if it cannot train
    now."""
    torch = None if links_only else _torch_fact(run, options)
    if not links_only:
        training_smoke.refuse(run, options, run.bound.desired.of_features.get("training"))
    wanted = (system.simulated, network.network, network.hcas, network.firewalls, driver.loaded_version)
    of_gpus: tuple[Fact[Any], ...] = () if links_only else (gpu.gpus, *((torch,) if torch else ()))
    run.read_unknown((*wanted, *of_gpus))
    needed: tuple[Fact[Any], ...] = (network.network, network.hcas, driver.loaded_version, *of_gpus)
    for fact in needed:
        run.value(fact)  # raises HostError
    yield actions.known_facts(run, (*wanted, *of_gpus))


def traits(run: HostRun, options: SmokeOptions, links_only: bool) -> dict[str, str]:
    """The versions and GPUs that must be equal on all nodes of a training, by their names."""
    store = run.store
    by_name = {"driver": store(driver.loaded_version)}
    if links_only:
        return by_name
    names = [one.name for one in store(gpu.gpus)]
    by_name["GPUs"] = " and ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))
    if fact := _torch_fact(run, options):
        torch = store(fact)
        by_name.update({"torch": torch.torch, "CUDA of torch": torch.cuda, "NCCL of torch": torch.nccl})
    return by_name


def choose_nodes(runs: Sequence[HostRun]) -> tuple[Node, ...]:
    """The nodes with their interfaces and adapters. Raises HostError."""
    networks = []
    for run in runs:
        store, wanted = run.store, run.bound.desired.of_features.get("nodes") or Nodes()
        origin = run.host.origin("nodes") if run.bound.desired.of_features.get("nodes") else ""
        has = store(network.network), store(network.hcas)
        networks.append(NodeNetwork(run.host.name, run.host.address, *has, wanted, origin))
    ports = {node.name: node.wanted.port for node in networks}
    if len(set(ports.values())) > 1:
        problem = ", ".join(f"{name} {port}" for name, port in ports.items())
        fix = "nodes: {port: 29400}, for the group"
        raise HostError("nodes.port", f"the nodes have different ports: {problem}", "one port", fix)
    made = interfaces.choose(networks)
    return tuple(
        replace(node, port=ports[node.name], firewalls=_firewalls(run)) for node, run in zip(made, runs, strict=True)
    )


def _firewalls(run: HostRun) -> tuple[str, ...]:
    units = run.store.known.get(network.firewalls)
    return units if isinstance(units, tuple) else ()


def links(runs: Sequence[HostRun], nodes: Sequence[Node]) -> tuple[Link, ...]:
    """Measures the links between all nodes in rounds of pairs that share no node. A host with an error is left out of
    later rounds."""
    by_name, node_of = {run.host.name: run for run in runs}, {node.name: node for node in nodes}
    made: list[Link] = []
    all_rounds = interfaces.rounds([node.name for node in nodes])
    for number, pairs in enumerate(all_rounds, 1):
        able = [pair for pair in pairs if all(by_name[name].report.error is None for name in pair)]
        meetings = [Meeting(node_of[a], node_of[b], secrets.token_hex(8)) for a, b in able]
        of_host = {node.name: meeting for meeting in meetings for node in (meeting.a, meeting.b)}
        ends: dict[str, LinkEnd] = {}
        action = partial(_link, meetings=of_host, ends=ends)
        pool.run_hosts([by_name[name] for name in of_host], action, activity=f"links {number}/{len(all_rounds)}")
        made += [node_links.link_of_ends(one, ends.get(one.a.name), ends.get(one.b.name)) for one in meetings]
    return tuple(made)


def _link(run: HostRun, meetings: Mapping[str, Meeting], ends: dict[str, LinkEnd]) -> Iterator[HostResult]:
    ends[run.host.name] = node_links.measure(run, meetings[run.host.name])
    return iter(())


def train(runs: Sequence[HostRun], measured: NodesMeasured, options: SmokeOptions) -> NodesMeasured:
    """Trains on all nodes; returns `measured` with the results, or with the reason if a link or a host failed."""
    by_name = {run.host.name: run for run in runs}
    if wrong := [run.host.name for run in runs if run.report.error is not None]:
        return replace(measured, untrained=f"not trained: {host_ranges.folded(wrong)} failed before")
    if broken := [f"{link.a} - {link.b}" for link in measured.links if link.error]:
        return replace(measured, untrained=f"not trained: no connection {', '.join(broken[:4])}")
    gpus = [len(by_name[node.name].store(gpu.gpus)) for node in measured.nodes]
    where, found = Rendezvous(measured.nodes, gpus, secrets.token_hex(8)), dict[str, NodeTraining]()
    pool.run_hosts(runs, partial(_train, where=where, options=options, found=found), activity="training")
    return replace(measured, trainings=tuple(found.get(node.name) for node in measured.nodes))


def _train(
    run: HostRun, where: Rendezvous, options: SmokeOptions, found: dict[str, NodeTraining]
) -> Iterator[HostResult]:
    found[run.host.name] = node_training.train(run, where, options.seconds, *_interpreter(run, options))
    return iter(())


def earlier_links(past: History, machine: int | None) -> tuple[DatedLink, ...]:
    """The figures of earlier measurements of a machine's links; () for a new machine. Raises HistoryError."""
    return tuple(DatedLink(*dated) for dated in past.figures(machine, facts.links.name, LinkFigures))


def judge(run: HostRun, measured: NodesMeasured, before: Mapping[str, tuple[DatedLink, ...]]) -> Iterator[HostResult]:
    """Runs the checks of the playbook for one node; the figures of its links go to the history."""
    own = replace(measured, own=run.host.name, before=before.get(run.host.name, ()))
    run.store.known[facts.links] = _figures(own)
    yield own
    yield from actions.check_measured(run, nodes_measured=own)


def _figures(measured: NodesMeasured) -> tuple[LinkFigures, ...]:
    interface, figures = measured.node(measured.own).interface, []
    for link in measured.own_links():
        sent, received = link.sent_gbit_s(measured.own), link.received_gbit_s(measured.own)
        if not link.error and sent is not None and received is not None:
            figures.append(LinkFigures(link.other(measured.own), interface, sent, received))
    return tuple(figures)
