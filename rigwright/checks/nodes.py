"""Checks of several nodes of one training: their interfaces and adapters, and the links between them. Only `invoke train.smoke --nodes` runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigwright.checks import AGAIN, Finding, check
from rigwright.core import host_ranges
from rigwright.core.numbers import count
from rigwright.facts import Facts, network
from rigwright.facts.nodes import Link, Node, NodesMeasured

SLOW = 0.7
"""Of the fastest link of the other nodes: a node is slow if none of its links comes to it, and a link if none of its ends does."""
OF_PORT = 0.6
"""Of the rate of the slower port: what TCP must come to (assumed; 90 % is usual up to 25 Gb/s)."""
TCP_FILLS_MBIT = 25_000
"""Up to this rate four TCP streams of one process fill a port (assumed); above it the port's rate is not compared."""
AS_BEFORE, FULL = 0.8, 0.9
"""Of the best earlier rate of the same link; of the rate of the slower port, which is enough whatever was measured before."""
ONLY_NODES = "known only after invoke train.smoke --nodes"


def gbit(value: float | None) -> str:
    """`9.41 Gb/s`, `0.48 Gb/s`; `nothing` for None."""
    return "nothing" if value is None else f"{value:.3g} Gb/s"


def speed_text(mbit: int | None) -> str:
    """`10 Gb/s`, `100 Mb/s`; `unknown speed`."""
    if mbit is None:
        return "unknown speed"
    return f"{mbit / 1000:g} Gb/s" if mbit >= 1000 else f"{mbit} Mb/s"


def slow_nodes(links: Sequence[Link]) -> dict[str, tuple[float, float]]:
    """By node that is slow: the rate of its fastest link, and that of the fastest link between other nodes, 10^9 bits a second.

    A node whose links all failed is not slow. With two nodes none is: their link does not say which end it is.
    """
    measured = [link for link in links if not link.error]
    found = {}
    for name in dict.fromkeys(name for link in measured for name in (link.a, link.b)):
        own = max(link.slower_gbit_s for link in measured if link.joins(name))
        others = max((link.slower_gbit_s for link in measured if not link.joins(name)), default=0.0)
        if own < SLOW * others:
            found[name] = own, others
    return found


def slow_links(links: Sequence[Link]) -> tuple[Link, ...]:
    """The links that are slow although neither of their nodes is: both nodes have another one that is faster."""
    measured, slow = [link for link in links if not link.error], slow_nodes(links)

    def best(name: str, but: Link) -> float:
        return max((link.slower_gbit_s for link in measured if link.joins(name) and link != but), default=0.0)

    return tuple(
        link
        for link in measured
        if link.a not in slow
        and link.b not in slow
        and link.slower_gbit_s < SLOW * min(best(link.a, link), best(link.b, link))
    )


@check()
def interface(facts: Facts, *, nodes_measured: NodesMeasured | None = None) -> Iterator[Finding]:  # noqa: ARG001
    """Says which interface the node uses for the others, and why; its port is as fast as those of the other nodes."""
    if nodes_measured is None:
        yield Finding("interface", "info", ONLY_NODES)
        return
    own = nodes_measured.node(nodes_measured.own)
    seen = f"{own.interface} {own.address}, {speed_text(own.speed_mbit)}: {own.why}"
    fastest = max((node.speed_mbit or 0 for node in nodes_measured.nodes), default=0)
    if own.speed_mbit is not None and own.speed_mbit < fastest:
        names = host_ranges.folded(node.name for node in nodes_measured.nodes if node.speed_mbit == fastest)
        expected = f"{speed_text(fastest)}, as on {names}"
        fix = f"ethtool {own.interface}; another cable or port of the switch; or nodes: {{interface: ...}} for a faster one"
        yield Finding("interface", "warn", seen, expected, "a slower port, or one that came up slower", fix, "peers")
        return
    yield Finding("interface", "pass", seen)


@check()
def adapters(facts: Facts, *, nodes_measured: NodesMeasured | None = None) -> Iterator[Finding]:
    """Says which InfiniBand or RoCE ports NCCL uses, and why; ports have a link, as fast as those of the other nodes."""
    if nodes_measured is None:
        yield Finding("InfiniBand and RoCE", "info", ONLY_NODES)
        return
    ports, own = facts(network.hcas), nodes_measured.node(nodes_measured.own)
    seen = f"{', '.join(own.hcas)}: {own.hca_why}" if own.hcas else own.hca_why
    fastest = max((node.hca_gbit_s or 0.0 for node in nodes_measured.nodes), default=0.0)
    if own.hca_gbit_s is not None and own.hca_gbit_s < fastest:
        names = host_ranges.folded(node.name for node in nodes_measured.nodes if node.hca_gbit_s == fastest)
        rates = ", ".join(f"{port.name} {port.rate}" for port in ports if port.name in own.hcas and port.rate)
        yield Finding(
            "InfiniBand and RoCE",
            "warn",
            f"{seen}; {rates}" if rates else seen,
            f"{fastest:g} Gb/s, as on {names}",
            "a damaged or dirty cable, or a port of the switch that is set to a lower rate",
            "ibstat and iblinkinfo; another cable; mlxlink -d ADAPTER -c shows why a lane is missing",
            "peers",
        )
        return
    down = [port for port in ports if not port.active]
    if down and not own.hcas and own.hca_why.startswith("TCP: ") and "nodes.hca is none" not in own.hca_why:
        named = ", ".join(f"{port.name} {port.state} ({port.physical})" for port in down[:6])
        cause = "no cable, a port of the switch that is off" + (
            ", or no subnet manager" if any(port.link_layer == "InfiniBand" for port in down) else ""
        )
        fix = "ibstat; plug in the cable; on one node or the switch of an InfiniBand network: systemctl start opensm"
        yield Finding(
            "InfiniBand and RoCE", "warn", f"{named}; NCCL takes TCP on all nodes", "ACTIVE (LinkUp)", cause, fix
        )
        return
    yield Finding("InfiniBand and RoCE", "pass" if own.hcas else "info", seen)


@check(follows=(interface,))
def links(facts: Facts, *, nodes_measured: NodesMeasured | None = None) -> Iterator[Finding]:  # noqa: ARG001
    """The node reaches every other one, as fast as the others reach each other, as fast as its port, and as fast as before."""
    if nodes_measured is None:
        yield Finding("links", "info", ONLY_NODES)
        return
    own = nodes_measured.node(nodes_measured.own)
    if not nodes_measured.own_links():
        yield Finding(f"links of {own.name}", "unknown", "not measured", "a link to every other node", "", AGAIN)
        return
    slow = slow_nodes(nodes_measured.links)
    if own.name in slow:
        yield _slow_node(nodes_measured, own, *slow[own.name])
    slow_alone = slow_links(nodes_measured.links)
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


def _slow_node(measured: NodesMeasured, own: Node, best: float, others: float) -> Finding:
    mine = [link for link in measured.own_links() if not link.error]
    sent = max(link.sent_gbit_s(own.name) or 0.0 for link in mine)
    received = max(link.received_gbit_s(own.name) or 0.0 for link in mine)
    ways = [
        f"sends at most {gbit(sent)}" * (sent < SLOW * others),
        f"receives at most {gbit(received)}" * (received < SLOW * others),
    ]
    seen = f"this node is slow: it {' and '.join(way for way in ways if way) or f'carries at most {gbit(best)}'}"
    fix = (
        f"ethtool {own.interface}; ip -s link show {own.interface} and tc qdisc show dev {own.interface}, on {own.name}; "
        "another cable or port of the switch; then the same command again"
    )
    cause = "its cable, its port, the port of the switch, or a limit of its traffic"
    return Finding(
        f"links of {own.name}", "fail", seen, f"{gbit(others)}, as between the other nodes", cause, fix, "peers"
    )


def _broken(measured: NodesMeasured, link: Link) -> Finding | None:
    if not link.error:
        return None
    listens, asks = measured.node(link.a), measured.node(link.b)
    rule = f"sudo ufw allow from {asks.address}, on {listens.name}" if "ufw" in listens.firewalls else ""
    rule = (
        rule
        or f"allow all TCP from {asks.address} on {listens.name}: NCCL and torchrun take more ports than {listens.port}"
    )
    active = f"; active on {listens.name}: {', '.join(listens.firewalls)}" if listens.firewalls else ""
    fix = (
        f"ss -ltnp 'sport = :{listens.port}', on {listens.name}; or nodes: {{port: ...}} on all nodes"
        if "in use" in link.error
        else rule
    )
    return Finding(
        f"link to {link.other(measured.own)}",
        "fail",
        f"{link.at or asks.name}: {listens.address} port {listens.port} of {listens.name}: {link.error}{active}",
        "a connection",
        "another program on the port" if "in use" in link.error else "a firewall, or a cable",
        fix,
    )


def _elsewhere(own: Node, link: Link) -> Finding | None:
    past = link.past_a if link.a == own.name else link.past_b
    if not past:
        return None
    seen = f"{_figures(own, link)}; the bytes went over {', '.join(past)}, not over {own.interface} alone"
    fix = f"ip route get {link.other(own.name)}'s address, on {own.name}; or nodes: {{interface: {past[0]}}}"
    return Finding(
        _title(own, link), "warn", seen, f"{own.interface} alone", "two interfaces in one network, or a route", fix
    )


def _because(own: Node, link: Link, slow: dict[str, tuple[float, float]]) -> Finding | None:
    names = [name for name in (link.a, link.b) if name in slow]
    if not names:
        return None
    why = (
        f"slow because {names[0] if names != [own.name] else 'this node'} is"
        if len(names) == 1
        else "both nodes are slow"
    )
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
    fix = f"ip -s link show {own.interface}, on both nodes; ethtool -S {own.interface}; then the same command again while the nodes are idle"
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
    return Finding(
        _title(own, link),
        "warn",
        _figures(own, link),
        f"{gbit(before)}, as on {best.at[:10]}",
        "a link that became slower",
        fix,
        "past",
    )


def _slower_port(measured: NodesMeasured, link: Link) -> int | None:
    """The rate of the slower port of a link, megabits a second; None where one is unknown."""
    ports = [node.speed_mbit for node in measured.nodes if link.joins(node.name)]
    known = [mbit for mbit in ports if mbit is not None]
    return min(known) if len(known) == len(ports) else None
