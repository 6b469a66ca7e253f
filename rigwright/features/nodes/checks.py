"""Checks of several nodes of one training: their interfaces and adapters, and the links between them. Only `invoke
train.smoke --nodes` runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rigwright.checks import AGAIN, Finding, check, of_symptom, of_text
from rigwright.checks.p2p import left_behind
from rigwright.core import host_ranges
from rigwright.core.numbers import count
from rigwright.facts import Facts, driver, network
from rigwright.features.nodes import facts as facts_of, training_facts as node_training
from rigwright.features.nodes.facts import GONE, Link, Node, NodesMeasured
from rigwright.features.nodes.training_facts import NodeTraining
from rigwright.features.training_smoke.checks import losses_of, unfinished
from rigwright.features.training_smoke.facts import SmokeRun

SLOW = 0.7
"""Of the fastest link of the other nodes: a node is slow if none of its links comes to it, and a link if none of its
ends does."""
OF_PORT = 0.6
"""Of the rate of the slower port: what TCP must come to (assumed; 90 % is usual up to 25 Gb/s)."""
TCP_FILLS_MBIT = 25_000
"""Up to this rate four TCP streams of one process fill a port (assumed); above it the port's rate is not compared."""
AS_BEFORE, FULL = 0.8, 0.9
"""Of the best earlier rate of the same link; of the rate of the slower port, which is enough whatever was measured
before."""
SLOW_ALONE = 0.9
"""Of the fastest node with the same GPUs: what a node must come to when it trains alone (assumed)."""
LEAST_EFFICIENCY = 0.5
"""Of the sum of the nodes alone: below it a training on all nodes is hardly faster than on half of them."""


def gbit(value: float | None) -> str:
    """`9.41 Gb/s`, `0.48 Gb/s`; `nothing` for None."""
    return "nothing" if value is None else f"{value:.3g} Gb/s"


def speed_text(mbit: int | None) -> str:
    """`10 Gb/s`, `100 Mb/s`; `unknown speed`."""
    if mbit is None:
        return "unknown speed"
    return f"{mbit / 1000:g} Gb/s" if mbit >= 1000 else f"{mbit} Mb/s"


class Slow(Struct, frozen=True):
    """A slow node: the most that it sent and received over any of its links, and the rate of the fastest link between
    other nodes."""

    sent_gbit_s: float
    received_gbit_s: float
    others_gbit_s: float


def _rate(measured: NodesMeasured, link: Link, value: float | None) -> float:
    """A measured rate, at most the rate of the slower port."""
    port = _slower_port(measured, link)
    return min(value or 0.0, port / 1000) if port else value or 0.0


def slow_nodes(measured: NodesMeasured) -> dict[str, Slow]:
    """By name the nodes that send or receive on all links at less than SLOW of the fastest link between other nodes. A
    node whose links all failed is not slow. Of two nodes neither is slow: their link does not show which end it is."""
    links = [link for link in measured.links if not link.error]
    slow = {}
    for node in measured.nodes:
        own = [link for link in links if link.joins(node.name)]
        others = max(
            (_rate(measured, link, link.slower_gbit_s) for link in links if not link.joins(node.name)), default=0.0
        )
        sent = max((_rate(measured, link, link.sent_gbit_s(node.name)) for link in own), default=0.0)
        received = max((_rate(measured, link, link.received_gbit_s(node.name)) for link in own), default=0.0)
        if own and min(sent, received) < SLOW * others:
            slow[node.name] = Slow(sent, received, others)
    return slow


def slow_links(measured: NodesMeasured) -> tuple[Link, ...]:
    """The slow links between two nodes that are not slow: both nodes have another link that is faster."""
    slow = slow_nodes(measured)
    rates = {link: _rate(measured, link, link.slower_gbit_s) for link in measured.links if not link.error}

    def best(name: str, but: Link) -> float:
        return max((rate for link, rate in rates.items() if link.joins(name) and link != but), default=0.0)

    return tuple(
        link
        for link, rate in rates.items()
        if link.a not in slow and link.b not in slow and rate < SLOW * min(best(link.a, link), best(link.b, link))
    )


@check(needs=facts_of.links)
def interface(facts: Facts, *, nodes_measured: NodesMeasured) -> Iterator[Finding]:  # noqa: ARG001
    """Says which interface the node uses for the others, and why; its port is as fast as those of the other nodes."""
    own = nodes_measured.node(nodes_measured.own)
    seen = f"{own.interface} {own.address}, {speed_text(own.speed_mbit)}: {own.why}"
    fastest = max((node.speed_mbit or 0 for node in nodes_measured.nodes), default=0)
    if own.speed_mbit is not None and own.speed_mbit < fastest:
        names = host_ranges.folded(node.name for node in nodes_measured.nodes if node.speed_mbit == fastest)
        expected = f"{speed_text(fastest)}, as on {names}"
        fix = f"ethtool {own.interface}; another cable or port of the switch; "
        fix += "or nodes: {interface: ...} for a faster one"
        yield Finding("interface", "warn", seen, expected, "a slower port, or one that came up slower", fix, "peers")
        return
    yield Finding("interface", "pass", seen)


@check(needs=facts_of.links)
def adapters(facts: Facts, *, nodes_measured: NodesMeasured) -> Iterator[Finding]:
    """Says which InfiniBand or RoCE ports NCCL uses, and why; ports have a link, as fast as those of the other
    nodes."""
    title = "InfiniBand and RoCE"
    ports, own = facts(network.hcas), nodes_measured.node(nodes_measured.own)
    seen = f"{', '.join(own.hcas)}: {own.hca_why}" if own.hcas else own.hca_why
    fastest = max((node.hca_gbit_s or 0.0 for node in nodes_measured.nodes), default=0.0)
    if own.hca_gbit_s is not None and own.hca_gbit_s < fastest:
        names = host_ranges.folded(node.name for node in nodes_measured.nodes if node.hca_gbit_s == fastest)
        rates = ", ".join(f"{port.name} {port.rate}" for port in ports if port.name in own.hcas and port.rate)
        seen += f"; {rates}" if rates else ""
        cause = "a damaged or dirty cable, or a port of the switch that is set to a lower rate"
        fix = "ibstat and iblinkinfo; another cable; mlxlink -d ADAPTER -c shows why a lane is missing"
        yield Finding(title, "warn", seen, f"{fastest:g} Gb/s, as on {names}", cause, fix, "peers")
        return
    down = [port for port in ports if not port.active]
    if down and not own.hcas and own.hca_why.startswith("TCP: ") and "nodes.hca is none" not in own.hca_why:
        named = ", ".join(f"{port.name} {port.state} ({port.physical})" for port in down[:6])
        cause = "no cable, a port of the switch that is off"
        cause += ", or no subnet manager" if any(port.link_layer == "InfiniBand" for port in down) else ""
        fix = "ibstat; plug in the cable; on one node or the switch of an InfiniBand network: systemctl start opensm"
        yield Finding(title, "warn", f"{named}; NCCL takes TCP on all nodes", "ACTIVE (LinkUp)", cause, fix)
        return
    yield Finding(title, "pass" if own.hcas else "info", seen)


@check(needs=facts_of.links, follows=(interface,))
def links(facts: Facts, *, nodes_measured: NodesMeasured) -> Iterator[Finding]:  # noqa: ARG001
    """The node reaches every other one, as fast as the others reach each other, as fast as its port, and as fast as
    before."""
    own = nodes_measured.node(nodes_measured.own)
    if not nodes_measured.own_links():
        yield Finding(f"links of {own.name}", "unknown", "not measured", "a link to every other node", "", AGAIN)
        return
    slow = slow_nodes(nodes_measured)
    if own.name in slow:
        yield _slow_node(own, slow[own.name])
    slow_alone = slow_links(nodes_measured)
    for link in nodes_measured.own_links():
        yield (
            _broken(nodes_measured, link)
            or _elsewhere(own, link)
            or _because(own, link, slow)
            or _slow_link(own, link, slow_alone)
            or _under_port(nodes_measured, own, link)
            or _past(nodes_measured, own, link)
            or Finding(_title(own, link), "pass", _figures(own, link))
        )


def _title(own: Node, link: Link) -> str:
    return f"link to {link.other(own.name)}"


def _figures(own: Node, link: Link) -> str:
    sent, received = link.sent_gbit_s(own.name), link.received_gbit_s(own.name)
    rtt = f", {link.rtt_us:.0f} µs there and back" if link.rtt_us is not None else ""
    return f"sends {gbit(sent)}, receives {gbit(received)}{rtt}"


def _slow_node(own: Node, slow: Slow) -> Finding:
    least, ways = SLOW * slow.others_gbit_s, []
    if slow.sent_gbit_s < least:
        ways.append(f"sends at most {gbit(slow.sent_gbit_s)}")
    if slow.received_gbit_s < least:
        ways.append(f"receives at most {gbit(slow.received_gbit_s)}")
    seen = f"this node is slow: it {' and '.join(ways)}"
    fix = (
        f"ethtool {own.interface}; ip -s link show {own.interface} and tc qdisc show dev {own.interface}, "
        f"on {own.name}; another cable or port of the switch; then the same command again"
    )
    cause = "its cable, its port, the port of the switch, or a limit of its traffic"
    expected = f"{gbit(slow.others_gbit_s)}, as between the other nodes"
    return Finding(f"links of {own.name}", "fail", seen, expected, cause, fix, "peers")


def _broken(measured: NodesMeasured, link: Link) -> Finding | None:
    if not link.error:
        return None
    title, listens, connects = f"link to {link.other(measured.own)}", measured.node(link.a), measured.node(link.b)
    if link.error == GONE:
        seen, expected = f"the measurement on {link.at} did not end", "a measurement on both nodes"
        cause = f"{link.at} went away, or its measurement failed: see what is said of it"
        fix = f"invoke verify --host {link.at}; then the same command again"
        return Finding(title, "fail", seen, expected, cause, fix)
    if "in use" in link.error:
        cause = "another program on the port"
        fix = f"ss -ltnp 'sport = :{listens.port}', on {listens.name}; or nodes: {{port: ...}} on all nodes"
    elif "ufw" in listens.firewalls:
        cause, fix = "a firewall, or a cable", f"sudo ufw allow from {connects.address}, on {listens.name}"
    else:
        cause = "a firewall, or a cable"
        fix = f"allow all TCP from {connects.address} on {listens.name}: "
        fix += f"NCCL and torchrun take more ports than {listens.port}"
    seen = f"{link.at or connects.name}: {listens.address} port {listens.port} of {listens.name}: {link.error}"
    seen += f"; active on {listens.name}: {', '.join(listens.firewalls)}" if listens.firewalls else ""
    return Finding(title, "fail", seen, "a connection", cause, fix)


def _elsewhere(own: Node, link: Link) -> Finding | None:
    past = link.past_a if link.a == own.name else link.past_b
    if not past:
        return None
    seen = f"{_figures(own, link)}; the bytes went over {', '.join(past)}, not over {own.interface} alone"
    fix = f"ip route get {link.other(own.name)}'s address, on {own.name}; or nodes: {{interface: {past[0]}}}"
    return Finding(
        _title(own, link), "warn", seen, f"{own.interface} alone", "two interfaces in one network, or a route", fix
    )


def _because(own: Node, link: Link, slow: Mapping[str, Slow]) -> Finding | None:
    names = [name for name in (link.a, link.b) if name in slow]
    if not names:
        return None
    node = "this node" if names == [own.name] else names[0]
    why = f"slow because {node} is" if len(names) == 1 else "both nodes are slow"
    return Finding(_title(own, link), "info", f"{_figures(own, link)}: {why}")


def _slow_link(own: Node, link: Link, slow_alone: Sequence[Link]) -> Finding | None:
    if link not in slow_alone:
        return None
    expected = "as fast as the other links of both nodes"
    cause = "the way between the two, such as a link between two switches: each of them is fast with other nodes"
    fix = f"traceroute {link.other(own.name)}'s address, on {own.name}; look at the switches between them"
    return Finding(_title(own, link), "warn", _figures(own, link), expected, cause, fix, "peers")


def _under_port(measured: NodesMeasured, own: Node, link: Link) -> Finding | None:
    port = _slower_port(measured, link)
    if port is None or port > TCP_FILLS_MBIT or link.slower_gbit_s * 1000 >= OF_PORT * port:
        return None
    expected = f"{OF_PORT:.0%} or more of {speed_text(port)}, the rate of the slower port"
    cause = "errors on the cable, a busy machine or switch, or a limit of the traffic"
    fix = f"ip -s link show {own.interface}, on both nodes; ethtool -S {own.interface}; "
    fix += "then the same command again while the nodes are idle"
    return Finding(_title(own, link), "warn", _figures(own, link), expected, cause, fix, "host")


def _past(measured: NodesMeasured, own: Node, link: Link) -> Finding | None:
    peer = link.other(own.name)
    same = [one for one in measured.before if (one.figures.peer, one.figures.interface) == (peer, own.interface)]
    best = max(same, key=lambda one: min(one.figures.sent_gbit_s, one.figures.received_gbit_s), default=None)
    if best is None:
        return None
    before = min(best.figures.sent_gbit_s, best.figures.received_gbit_s)
    port = _slower_port(measured, link)
    if link.slower_gbit_s >= AS_BEFORE * before or (port and link.slower_gbit_s * 1000 >= FULL * port):
        seen = f"{_figures(own, link)}; {gbit(before)} on {best.at[:10]}, the best of {count(len(same), 'earlier run')}"
        return Finding(_title(own, link), "pass", seen)
    fix = f"ip -s link show {own.interface}, on both nodes; then the same command again while the nodes are idle"
    expected = f"{gbit(before)}, as on {best.at[:10]}"
    return Finding(_title(own, link), "warn", _figures(own, link), expected, "a link that became slower", fix, "past")


def _slower_port(measured: NodesMeasured, link: Link) -> int | None:
    """The rate of the slower port of a link, megabits a second; None if one of them is unknown."""
    ports = [node.speed_mbit for node in measured.nodes if link.joins(node.name)]
    known = [mbit for mbit in ports if mbit is not None]
    return min(known) if len(known) == len(ports) else None


# --- the training


@check(needs=node_training.trained, follows=(links,))
def all_reduce(facts: Facts, *, nodes_measured: NodesMeasured) -> Iterator[Finding]:  # noqa: ARG001
    """NCCL's all-reduce over all nodes ends in time with right data, through the adapters that were chosen; with its
    bus bandwidth."""
    title = "NCCL over all nodes"
    training, own = nodes_measured.training, nodes_measured.node(nodes_measured.own)
    reduced, run = training.reduced, training.nccl
    if reduced is not None and reduced.missing:
        seen = f"not run: {reduced.error}"
        fix = "a training environment (docs/guide/training.md), whose NCCL is taken; or sudo apt-get install libnccl2"
        yield Finding(title, "unknown", seen, "NCCL and the CUDA runtime", "", fix)
        return
    if run.outcome == "not run":
        yield Finding(title, "info", f"not run: {run.error}")
        return
    if reduced is None or reduced.stage != "done":
        yield _no_sum(title, training)
        return
    ways = sorted({way.transport for way in run.transports.values() if way.kind == "NET"})
    seen = f"{count(reduced.ranks, 'GPU')} on {count(training.nodes, 'node')}, NCCL {reduced.version}: "
    seen += f"{reduced.busbw_gb_s:.3g} GB/s bus bandwidth"
    seen += f" over {' and '.join(ways)}" if ways else ""
    if own.hcas and ways and not any("IB" in way for way in ways):
        fix = "ibv_devinfo, as the user who trains; /dev/infiniband must be readable, "
        fix += "and libibverbs and its provider installed (rdma-core)"
        yield Finding(
            title, "warn", seen, f"NET/IB through {', '.join(own.hcas)}", "no library or no right for the adapter", fix
        )
        return
    yield Finding(title, "pass", f"{seen}; data right")


def _no_sum(title: str, training: NodeTraining) -> Finding:
    """The finding for an all-reduce that failed or did not end."""
    reduced, run = training.reduced, training.nccl
    stage = reduced.stage if reduced else "start"
    if reduced is not None and reduced.ok is False:
        return of_symptom("nccl.wrong_data", title, f"{reduced.error} at {stage}", "the right sum", verdict="fail")
    if run.outcome == "hang":
        firewall = "a firewall between the nodes: NCCL takes TCP ports at random"
        cause = firewall if stage == "connect" else "a node that stopped, or a link"
        fix = "allow all TCP between the nodes; nodes: {hca: none} tries it without InfiniBand and RoCE"
        return Finding(title, "fail", f"{run.error}, at {stage}; killed", "an end", cause, fix)
    last = next((line.strip() for line in reversed(run.said.splitlines()) if line.strip()), "no output")
    seen = f"at {stage}: {(reduced.error if reduced else None) or last[:200]}"
    fix = "nodes: {hca: none}; then the same command again"
    return of_text(f"{seen}\n{run.said}", title, seen, "an end without an error", fix=fix)


@check(needs=node_training.trained, follows=(links, all_reduce))
def trained(facts: Facts, *, nodes_measured: NodesMeasured) -> Iterator[Finding]:
    """The training of this node alone and that of all nodes end in time; the loss falls and is equal on all ranks of
    all nodes."""
    loaded, training = facts(driver.loaded_version), nodes_measured.training
    yield from left_behind(training.left_behind)
    alone, every = training.alone, together(nodes_measured)
    yield replace(unfinished(alone, loaded) or losses_of(alone), subject="training on this node alone")
    subject = f"training on {count(training.nodes, 'node')}"
    here = replace(every, ranks=training.together.ranks, gpus=training.gpus)
    failed = unfinished(here, loaded)
    if failed is None and every.samples_s is not None:
        yield replace(losses_of(every), subject=subject)
        return
    elsewhere = _failed_elsewhere(nodes_measured)
    own_error = any(rank.error for rank in training.together.ranks)
    if elsewhere and not own_error:
        seen = f"stopped because of another node: {elsewhere}"
        yield Finding(subject, "unknown", seen, "a result of every rank", "", AGAIN)
        return
    failed = failed or Finding("", "unknown", "another node has no result", "a result of every rank", "", AGAIN)
    yield replace(failed, subject=subject)


def together(measured: NodesMeasured) -> SmokeRun:
    """The training on all nodes with the ranks of all nodes; its outcome is that of the judged node."""
    own = measured.training.together
    ranks = [rank for one in measured.trainings if one is not None for rank in one.together.ranks]
    return replace(own, ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)))


def _failed_elsewhere(measured: NodesMeasured) -> str:
    """The first error of a rank of another node; "" without one."""
    for node, one in zip(measured.nodes, measured.trainings, strict=True):
        if one is None:
            return f"{node.name} has no result"
        if node.name != measured.own and (bad := next((rank for rank in one.together.ranks if rank.error), None)):
            return f"{node.name}: rank {bad.rank} at {bad.stage}: {bad.error}"
    return ""


@check(needs=node_training.trained, follows=(links, all_reduce, trained))
def speed(facts: Facts, *, nodes_measured: NodesMeasured) -> Iterator[Finding]:  # noqa: ARG001
    """Samples a second of this node alone, compared with the other nodes, and of all nodes together, with the
    efficiency."""
    alone = {
        node.name: one.alone.samples_s / one.gpus
        for node, one in zip(nodes_measured.nodes, nodes_measured.trainings, strict=True)
        if one is not None and one.alone.samples_s is not None
    }
    training, every = nodes_measured.training, together(nodes_measured)
    if own := alone.get(nodes_measured.own):
        seen = f"{own * training.gpus:.0f} samples/s, {own:.0f} for each GPU"
        best = max(alone, key=lambda name: alone[name])
        subject = "speed of this node alone"
        if own < SLOW_ALONE * alone[best]:
            expected, cause = f"{alone[best]:.0f} for each GPU, as on {best}", "lower clocks, or slower links of GPUs"
            fix = "invoke stress, on both; invoke verify --tags p2p"
            yield Finding(subject, "warn", seen, expected, cause, fix, "peers")
        else:
            yield Finding(subject, "pass", seen)
    if every.samples_s is None or len(alone) < len(nodes_measured.nodes):
        return
    trainings = zip(nodes_measured.nodes, nodes_measured.trainings, strict=True)
    efficiency = every.samples_s / sum(alone[node.name] * one.gpus for node, one in trainings if one)
    subject = f"speed of training on {count(training.nodes, 'node')}"
    seen = f"{every.samples_s:.0f} samples/s in {every.ranks[0].precision}, "
    seen += f"efficiency {efficiency:.0%} of the nodes alone"
    if efficiency < LEAST_EFFICIENCY:
        cause = "the network: the model is small, so its gradients weigh much"
        fix = "InfiniBand or RoCE on all nodes; see the links above"
        yield Finding(subject, "info", seen, f"{LEAST_EFFICIENCY:.0%} or more", cause, fix)
        return
    yield Finding(subject, "pass", seen)
