"""Several nodes: the interface and the adapters by which each reaches the others, and in what the nodes differ."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from msgspec import Struct
from msgspec.structs import replace

from rigwright.core import host_ranges
from rigwright.core.errors import HostError
from rigwright.facts.network import HcaPort, Interface, Network
from rigwright.features.nodes.checks import speed_text
from rigwright.features.nodes.facts import Node
from rigwright.features.nodes.variables import NO_HCA, Nodes

CONTAINERS = (
    "docker",
    "br-",
    "virbr",
    "veth",
    "cni",
    "flannel",
    "cali",
    "lxc",
    "lxd",
    "podman",
    "tun",
    "tap",
    "wg",
    "tailscale",
)
"""Beginnings of the names of interfaces of containers, virtual machines and tunnels; they are taken only where `nodes`
names one."""


class NodeNetwork(Struct, frozen=True):
    """What is known of a node before the choice. `address`: where ssh connects to. `origin`: where the inventory has
    its `nodes` (FILE:LINE)."""

    name: str
    address: str
    network: Network
    hcas: tuple[HcaPort, ...]
    wanted: Nodes
    origin: str = ""

    def key(self, name: str) -> str:
        """A key of `nodes` with its place, for an error."""
        return f"nodes.{name} of {self.name}{f' ({self.origin})' if self.origin else ''}"


def choose(nodes: Sequence[NodeNetwork]) -> tuple[Node, ...]:
    """The interface and the adapters of each node, with the reasons. Raises HostError where no network joins all nodes,
    for two names of one machine, and for an interface or adapter of `nodes` that the host lacks or that is down."""
    able = {node.name: _able(node) for node in nodes}
    _require_different(nodes)
    shared = _shared(nodes, able) or _routed(nodes, able)
    if shared is None:
        seen = "; ".join(f"{node.name} has {_listed(able[node.name])}" for node in nodes)
        fix = "ip address, on each node; give all of them an address of one network, or name the interfaces: nodes: {interface: ens1f0}"
        raise HostError("nodes", f"no network joins all nodes: {seen}", "an IPv4 network with an address on each", fix)
    return _with_adapters(nodes, shared)


def _able(node: NodeNetwork) -> tuple[Interface, ...]:
    """The interfaces that may be taken: the one that `nodes` names, or all that are up with an address. Raises
    HostError."""
    wanted = node.wanted.interface
    if wanted is None:
        return tuple(one for one in _of_the_machine(node.network) if one.up)
    found = node.network.interface(wanted)
    there = ", ".join(one.name for one in node.network.interfaces if one.addresses and one.kind != "loopback")
    where = node.key("interface")
    if found is None:
        fix = f"one of these, or leave `interface` out; ip address, on {node.name}"
        raise HostError(where, f"the host has no interface {wanted}", there or "an interface", fix)
    if found.kind == "loopback":
        fix = f"nodes: {{interface: {there.partition(', ')[0]}}}" if there else f"ip address, on {node.name}"
        raise HostError(where, f"{wanted} reaches no other node", there or "an interface with an address", fix)
    if not found.up or not found.addresses:
        seen = f"{wanted} has no link" if not found.up else f"{wanted} has no IPv4 address"
        raise HostError(
            where, seen, "an interface that is up, with an address", f"ip address show {wanted}, on {node.name}"
        )
    return (found,)


def _require_different(nodes: Sequence[NodeNetwork]) -> None:
    """Raises HostError for two nodes with the same addresses."""
    first: dict[frozenset[str], str] = {}
    for node in nodes:
        own = _of_the_machine(node.network)
        addresses = frozenset(text for one in own for text in one.addresses)
        other = first.setdefault(addresses, node.name) if addresses else node.name
        if other != node.name:
            found = f"{other} and {node.name} are one machine: both have {_listed(own)}"
            fix = f"leave one of the two names out: --host; or correct ansible_host of {node.name}"
            raise HostError("nodes", found, "a machine of its own for each node", fix)


def _of_the_machine(network: Network) -> tuple[Interface, ...]:
    """The interfaces with an address that are not of containers, virtual machines and tunnels."""
    return tuple(
        one
        for one in network.interfaces
        if one.addresses and one.kind != "loopback" and not one.name.startswith(CONTAINERS)
    )


def _listed(interfaces: Sequence[Interface]) -> str:
    return (
        ", ".join(f"{one.name} {' '.join(one.addresses)}" for one in interfaces[:6]) or "no interface with an address"
    )


def _shared(nodes: Sequence[NodeNetwork], able: Mapping[str, Sequence[Interface]]) -> tuple[Node, ...] | None:
    """The nodes with their interfaces in the fastest network that all of them share; None where they share none."""
    found: list[tuple[IPv4Network, list[tuple[Interface, IPv4Address]]]] = []
    networks = {IPv4Interface(text).network for one in able[nodes[0].name] for text in one.addresses}
    for network in sorted(networks):
        members = [_member(able[node.name], network) for node in nodes]
        ends = [member for member in members if member is not None]
        if len(ends) == len(nodes) == len({address for _, address in ends}):
            found.append((network, ends))
    if not found:
        return None
    of_ssh = {node.address for node in nodes}

    def rank(each: tuple[IPv4Network, list[tuple[Interface, IPv4Address]]]) -> tuple[int, int]:
        _, ends = each
        return min(one.speed_mbit or 0 for one, _ in ends), sum(str(address) in of_ssh for _, address in ends)

    network, ends = max(found, key=rank)
    kind = "only" if len(found) == 1 else "fastest"
    slowest = speed_text(min((one.speed_mbit for one, _ in ends if one.speed_mbit), default=None))
    others = [str(each) for each, _ in found if each != network]
    why = f"the {kind} network that all nodes share, {network} ({slowest})"
    why += f"; also shared: {', '.join(others[:3])}" if others else ""
    return tuple(
        Node(
            node.name,
            str(address),
            one.name,
            one.speed_mbit,
            "set by nodes.interface" if node.wanted.interface else why,
        )
        for node, (one, address) in zip(nodes, ends, strict=True)
    )


def _member(interfaces: Sequence[Interface], network: IPv4Network) -> tuple[Interface, IPv4Address] | None:
    """The fastest of the interfaces with an address in a network, and that address."""
    ends = [
        (one, IPv4Interface(text).ip)
        for one in interfaces
        for text in one.addresses
        if IPv4Interface(text).network == network
    ]
    return max(ends, key=lambda end: end[0].speed_mbit or 0, default=None)


def _routed(nodes: Sequence[NodeNetwork], able: Mapping[str, Sequence[Interface]]) -> tuple[Node, ...] | None:
    """The nodes with the interfaces through which their routes to each other go; None where one has no such route.

    Where ssh connects to is tried first, as the address of the others, then their addresses in order.
    """
    reached: dict[str, tuple[Interface, str]] = {}
    for node in nodes:
        addresses = [(one, str(IPv4Interface(text).ip)) for one in able[node.name] for text in one.addresses]
        if not addresses:
            return None
        reached[node.name] = next((each for each in addresses if each[1] == node.address), addresses[0])
    made = []
    for node in nodes:
        others = [address for name, (_, address) in reached.items() if name != node.name]
        ways = {node.network.way_to(address) for address in others}
        interface, own = reached[node.name]
        if ways != {interface.name} or own in others:
            return None
        why = (
            "set by nodes.interface"
            if node.wanted.interface
            else "no network is shared; the routes to the others go through it"
        )
        made.append(Node(node.name, own, interface.name, interface.speed_mbit, why))
    return tuple(made)


# --- InfiniBand and RoCE


def _with_adapters(nodes: Sequence[NodeNetwork], chosen: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes with the ports of their adapters, where every node has one with a link of the same kind. Raises
    HostError."""
    able = {node.name: _ports(node) for node in nodes}
    why = _why_no_adapter(nodes, able)
    for layer in ("InfiniBand", "Ethernet"):
        if why:
            break
        ports = {name: _fastest([one for one in found if one.link_layer == layer]) for name, found in able.items()}
        if all(ports.values()):
            return tuple(_with_ports(node, one, ports[one.name]) for node, one in zip(nodes, chosen, strict=True))
    why = why or f"TCP: {_unlike_layers(able)}"
    return tuple(replace(one, hca_why=why) for one in chosen)


def _ports(node: NodeNetwork) -> tuple[HcaPort, ...]:
    """The ports that the node may use. Raises HostError for ports of `nodes.hca` that the host lacks or that have no
    link."""
    wanted = node.wanted.hca
    if wanted is None:
        return tuple(
            port for port in node.hcas if port.active and (port.link_layer == "InfiniBand" or _has_gid(node, port))
        )
    if wanted == NO_HCA:
        return ()
    known = {port.name: port for port in node.hcas}
    for name in wanted.split(","):
        where = node.key("hca")
        if name not in known:
            expected = ", ".join(known) or "an adapter with its kernel module"
            fix = f"one of these, or leave `hca` out; ibstat, on {node.name}" if known else "nodes: {hca: none} for TCP"
            raise HostError(where, f"the host has no port {name}", expected, fix)
        if not known[name].active:
            seen = f"{name} is {known[name].state} ({known[name].physical})"
            raise HostError(
                where, seen, "ACTIVE", "check its cable and switch; InfiniBand needs a subnet manager (opensm)"
            )
    return tuple(known[name] for name in wanted.split(","))


def _has_gid(node: NodeNetwork, port: HcaPort) -> bool:
    """Whether a RoCE port has an interface that is up with an IPv4 address, which its GIDs are made of."""
    found = (node.network.interface(name) for name in port.interfaces)
    return any(one is not None and one.up and one.addresses for one in found)


def _fastest(ports: Sequence[HcaPort]) -> tuple[HcaPort, ...]:
    most = max((port.rate_gbit_s for port in ports), default=0.0)
    return tuple(port for port in ports if port.rate_gbit_s == most)


def _why_no_adapter(nodes: Sequence[NodeNetwork], able: Mapping[str, Sequence[HcaPort]]) -> str:
    """Why TCP is taken; "" where every node has a port with a link."""
    if not any(node.hcas for node in nodes):
        return "TCP: no node has an InfiniBand or RoCE adapter"
    if refused := [node.name for node in nodes if node.wanted.hca == NO_HCA]:
        return f"TCP: nodes.hca is none on {host_ranges.folded(refused)}"
    lacks = []
    for node in nodes:
        if able[node.name]:
            continue
        down = [f"{port.name} is {port.state} ({port.physical})" for port in node.hcas if not port.active]
        bare = [f"{port.name} has no interface with an address" for port in node.hcas if port.active]
        lacks.append(f"{node.name}: {', '.join((down + bare)[:4]) or 'no adapter'}")
    return f"TCP: {'; '.join(lacks)}" if lacks else ""


def _unlike_layers(able: Mapping[str, Sequence[HcaPort]]) -> str:
    return "; ".join(
        f"{name} has {' and '.join(sorted({port.link_layer for port in ports}))}" for name, ports in able.items()
    )


def _with_ports(node: NodeNetwork, chosen: Node, ports: Sequence[HcaPort]) -> Node:
    layer = ports[0].link_layer
    kind = "InfiniBand" if layer == "InfiniBand" else "RoCE"
    why = "set by nodes.hca" if node.wanted.hca else f"{kind}: the fastest ports with a link"
    left = [f"{port.name} is {port.state}" for port in node.hcas if not port.active]
    why += f"; {', '.join(left[:4])}" if left else ""
    slowest = min(port.rate_gbit_s for port in ports)
    return replace(
        chosen,
        hcas=tuple(port.name for port in ports),
        hca_gbit_s=slowest,
        link_layer=layer,
        hca_why=f"{why} ({slowest:g} Gb/s)",
    )


def environment(node: Node) -> dict[str, str]:
    """The variables of NCCL and gloo for the node: its interface, and its adapters or none."""
    made = {"NCCL_SOCKET_IFNAME": f"={node.interface}", "GLOO_SOCKET_IFNAME": node.interface}
    if node.hcas:
        return {**made, "NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": f"={','.join(node.hcas)}"}
    return {**made, "NCCL_IB_DISABLE": "1"}


# --- in what the nodes differ


def differences(traits: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """By node a value for each trait: a sentence for each trait in which nodes differ, which names those that differ
    from most."""
    names = list(traits)
    found = []
    for trait in dict.fromkeys(trait for each in traits.values() for trait in each):
        values = {name: traits[name].get(trait, "") or "none" for name in names}
        counted = Counter(values.values())
        if len(counted) == 1:
            continue
        (usual, most), *_ = counted.most_common()
        odd = {value: [name for name in names if values[name] == value] for value in counted if value != usual}
        if most == max((len(each) for each in odd.values()), default=0):  # no majority
            parts = [
                f"{host_ranges.folded(each)} {value}"
                for value, each in {usual: [n for n in names if values[n] == usual], **odd}.items()
            ]
            found.append(f"{trait}: {', '.join(parts)}")
            continue
        same = host_ranges.folded(name for name in names if values[name] == usual)
        parts = [f"{host_ranges.folded(each)} has {value}" for value, each in odd.items()]
        found.append(f"{trait}: {', '.join(parts)}; {same} {usual}")
    return tuple(found)


def rounds(names: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Every pair once, in rounds of pairs that share no node: n - 1 rounds for an even number of nodes, n for an odd
    one."""
    ring: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    made = []
    for _ in range(len(ring) - 1):
        pairs = [(ring[at], ring[-1 - at]) for at in range(len(ring) // 2)]
        order = {name: at for at, name in enumerate(names)}
        made.append(
            tuple((a, b) if order[a] < order[b] else (b, a) for a, b in pairs if a is not None and b is not None)
        )
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return tuple(made)


def subnet(nodes: Sequence[Node]) -> str:
    """The smallest IPv4 network that holds the addresses of all nodes, for the rule of a firewall."""
    addresses = [int(ipaddress.IPv4Address(node.address)) for node in nodes]
    bits = (min(addresses) ^ max(addresses)).bit_length()
    return str(IPv4Network((min(addresses) >> bits << bits, 32 - bits)))
