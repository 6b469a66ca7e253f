"""Several nodes: the interface and the adapters by which each reaches the others, and in what the nodes differ."""

from __future__ import annotations

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

CONTAINERS = tuple("docker br- virbr veth cni flannel cali lxc lxd podman tun tap wg tailscale".split())
"""Beginnings of the names of interfaces of containers, virtual machines and tunnels; they are taken only where `nodes`
names one."""
BY_INVENTORY = "set by nodes.interface"


class NodeNetwork(Struct, frozen=True):
    """The network of a node. `address`: ssh connects to it. `origin`: FILE:LINE of `nodes` in the inventory."""

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
    """The interface and the adapters of each node, with the reasons. Raises HostError if no network joins all nodes,
    for two names of one machine, and for an interface or adapter of `nodes` that the host lacks or that is down."""
    able = {node.name: _able(node) for node in nodes}
    _require_different(nodes)
    shared = _in_shared_network(nodes, able) or _through_routes(nodes, able)
    if shared is None:
        found = "; ".join(f"{node.name} has {_interfaces_text(able[node.name])}" for node in nodes)
        fix = "ip address, on each node; give all of them an address of one network, "
        fix += "or name the interfaces: nodes: {interface: ens1f0}"
        raise HostError("nodes", f"no network joins all nodes: {found}", "an IPv4 network with an address on each", fix)
    return _with_adapters(nodes, shared)


def _able(node: NodeNetwork) -> tuple[Interface, ...]:
    """The interfaces that may be taken: the one that `nodes` names, or all that are up with an address. Raises
    HostError."""
    wanted = node.wanted.interface
    if wanted is None:
        return tuple(interface for interface in _of_the_machine(node.network) if interface.up)
    interface = node.network.interface(wanted)
    there = ", ".join(each.name for each in node.network.interfaces if each.addresses and each.kind != "loopback")
    where = node.key("interface")
    if interface is None:
        fix = f"one of these, or leave `interface` out; ip address, on {node.name}"
        raise HostError(where, f"the host has no interface {wanted}", there or "an interface", fix)
    if interface.kind == "loopback":
        fix = f"nodes: {{interface: {there.partition(', ')[0]}}}" if there else f"ip address, on {node.name}"
        raise HostError(where, f"{wanted} reaches no other node", there or "an interface with an address", fix)
    if not interface.up or not interface.addresses:
        found = f"{wanted} has no {'IPv4 address' if interface.up else 'link'}"
        fix = f"ip address show {wanted}, on {node.name}"
        raise HostError(where, found, "an interface that is up, with an address", fix)
    return (interface,)


def _require_different(nodes: Sequence[NodeNetwork]) -> None:
    """Raises HostError for two nodes with the same addresses."""
    first: dict[frozenset[str], str] = {}
    for node in nodes:
        own = _of_the_machine(node.network)
        addresses = frozenset(text for each in own for text in each.addresses)
        other = first.setdefault(addresses, node.name) if addresses else node.name
        if other != node.name:
            found = f"{other} and {node.name} are one machine: both have {_interfaces_text(own)}"
            fix = f"leave one of the two names out: --host; or correct ansible_host of {node.name}"
            raise HostError("nodes", found, "a machine of its own for each node", fix)


def _of_the_machine(network: Network) -> tuple[Interface, ...]:
    """The interfaces with an address that are not of containers, virtual machines and tunnels."""
    return tuple(
        interface
        for interface in network.interfaces
        if interface.addresses and interface.kind != "loopback" and not interface.name.startswith(CONTAINERS)
    )


def _interfaces_text(interfaces: Sequence[Interface]) -> str:
    texts = [f"{interface.name} {' '.join(interface.addresses)}" for interface in interfaces[:6]]
    return ", ".join(texts) or "no interface with an address"


def _in_shared_network(
    nodes: Sequence[NodeNetwork], able: Mapping[str, Sequence[Interface]]
) -> tuple[Node, ...] | None:
    """The nodes with their interfaces in the fastest network that all nodes share; None if they share no network."""
    shared: list[tuple[IPv4Network, list[tuple[Interface, IPv4Address]]]] = []
    networks = {IPv4Interface(text).network for interface in able[nodes[0].name] for text in interface.addresses}
    for network in sorted(networks):
        members = [_member(able[node.name], network) for node in nodes]
        ends = [member for member in members if member is not None]
        if len(ends) == len(nodes) == len({address for _, address in ends}):
            shared.append((network, ends))
    if not shared:
        return None
    of_ssh = {node.address for node in nodes}

    def rank(each: tuple[IPv4Network, list[tuple[Interface, IPv4Address]]]) -> tuple[int, int]:
        _, ends = each
        slowest_mbit = min(interface.speed_mbit or 0 for interface, _ in ends)
        return slowest_mbit, sum(str(address) in of_ssh for _, address in ends)

    network, ends = max(shared, key=rank)
    kind = "only" if len(shared) == 1 else "fastest"
    slowest = speed_text(min((interface.speed_mbit for interface, _ in ends if interface.speed_mbit), default=None))
    others = [str(each) for each, _ in shared if each != network]
    why = f"the {kind} network that all nodes share, {network} ({slowest})"
    why += f"; also shared: {', '.join(others[:3])}" if others else ""
    reasons = [BY_INVENTORY if node.wanted.interface else why for node in nodes]
    return tuple(
        Node(node.name, str(address), interface.name, interface.speed_mbit, reason)
        for node, (interface, address), reason in zip(nodes, ends, reasons, strict=True)
    )


def _member(interfaces: Sequence[Interface], network: IPv4Network) -> tuple[Interface, IPv4Address] | None:
    """The fastest of the interfaces with an address in a network, and that address."""
    ends = [
        (interface, IPv4Interface(text).ip)
        for interface in interfaces
        for text in interface.addresses
        if IPv4Interface(text).network == network
    ]
    return max(ends, key=lambda end: end[0].speed_mbit or 0, default=None)


def _through_routes(nodes: Sequence[NodeNetwork], able: Mapping[str, Sequence[Interface]]) -> tuple[Node, ...] | None:
    """The nodes with the interfaces through which their routes to each other go; None if a node has no such route. The
    address of a node is the one that ssh connects to, otherwise its first."""
    reached: dict[str, tuple[Interface, str]] = {}
    for node in nodes:
        addresses = [(each, str(IPv4Interface(text).ip)) for each in able[node.name] for text in each.addresses]
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
        why = "no network is shared; the routes to the others go through it"
        why = BY_INVENTORY if node.wanted.interface else why
        made.append(Node(node.name, own, interface.name, interface.speed_mbit, why))
    return tuple(made)


# --- InfiniBand and RoCE


def _with_adapters(nodes: Sequence[NodeNetwork], chosen: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes with the ports of their adapters if all nodes have ports of one kind with a link. Raises HostError."""
    able = {node.name: _ports(node) for node in nodes}
    if why := _why_no_adapter(nodes, able):
        return tuple(replace(choice, hca_why=why) for choice in chosen)
    for layer in ("InfiniBand", "Ethernet"):
        ports = {name: [port for port in of_node if port.link_layer == layer] for name, of_node in able.items()}
        if all(ports.values()):
            pairs = zip(nodes, chosen, strict=True)
            return tuple(_with_ports(node, choice, ports[choice.name]) for node, choice in pairs)
    layers = {name: " and ".join(sorted({port.link_layer for port in of_node})) for name, of_node in able.items()}
    why = f"TCP: {'; '.join(f'{name} has {layer}' for name, layer in layers.items())}"
    return tuple(replace(choice, hca_why=why) for choice in chosen)


def _ports(node: NodeNetwork) -> tuple[HcaPort, ...]:
    """The ports that the node may use. Raises HostError for ports of `nodes.hca` that the host lacks or that have no
    link."""
    wanted = node.wanted.hca
    if wanted is None:
        active = (port for port in node.hcas if port.active)
        return tuple(port for port in active if port.link_layer == "InfiniBand" or _has_gid(node, port))
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
            found = f"{name} is {known[name].state} ({known[name].physical})"
            fix = "check its cable and switch; InfiniBand needs a subnet manager (opensm)"
            raise HostError(where, found, "ACTIVE", fix)
    return tuple(known[name] for name in wanted.split(","))


def _has_gid(node: NodeNetwork, port: HcaPort) -> bool:
    """Whether a RoCE port has an interface that is up with an IPv4 address, which its GIDs are made of."""
    interfaces = filter(None, map(node.network.interface, port.interfaces))
    return any(interface.up and interface.addresses for interface in interfaces)


def _why_no_adapter(nodes: Sequence[NodeNetwork], able: Mapping[str, Sequence[HcaPort]]) -> str:
    """Why NCCL uses TCP; "" if every node has a port with a link."""
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


def _with_ports(node: NodeNetwork, chosen: Node, ports: Sequence[HcaPort]) -> Node:
    """The node with the fastest of these ports, which have one link layer."""
    layer, rate = ports[0].link_layer, max(port.rate_gbit_s for port in ports)
    kind = "InfiniBand" if layer == "InfiniBand" else "RoCE"
    why = "set by nodes.hca" if node.wanted.hca else f"{kind}: the fastest ports with a link"
    unused = [f"{port.name} is {port.state}" for port in node.hcas if not port.active]
    why += f"; {', '.join(unused[:4])}" if unused else ""
    names = tuple(port.name for port in ports if port.rate_gbit_s == rate)
    return replace(chosen, hcas=names, hca_gbit_s=rate, link_layer=layer, hca_why=f"{why} ({rate:g} Gb/s)")


def environment(node: Node) -> dict[str, str]:
    """The variables of NCCL and gloo for the node: its interface, and its adapters if it has any."""
    hcas = {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": f"={','.join(node.hcas)}"} if node.hcas else {"NCCL_IB_DISABLE": "1"}
    return {"NCCL_SOCKET_IFNAME": f"={node.interface}", "GLOO_SOCKET_IFNAME": node.interface, **hcas}


# --- differences between the nodes


def differences(traits: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """A sentence for each trait in which nodes differ, with the nodes that differ from most. `traits`: by node the
    value of each trait."""
    sentences = []
    for trait in dict.fromkeys(trait for of_node in traits.values() for trait in of_node):
        names: dict[str, list[str]] = {}
        for name, of_node in traits.items():
            names.setdefault(of_node.get(trait, "") or "none", []).append(name)
        usual = max(names, key=lambda value: len(names[value]))
        others = {value: nodes for value, nodes in names.items() if value != usual}
        same = f"{host_ranges.folded(names[usual])} {usual}"
        if len(names[usual]) == max(map(len, others.values()), default=0):  # no majority
            parts = [same, *(f"{host_ranges.folded(nodes)} {value}" for value, nodes in others.items())]
            sentences.append(f"{trait}: {', '.join(parts)}")
        elif others:
            parts = [f"{host_ranges.folded(nodes)} has {value}" for value, nodes in others.items()]
            sentences.append(f"{trait}: {', '.join(parts)}; {same}")
    return tuple(sentences)


def rounds(names: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Every pair once, in rounds of pairs that share no node: n - 1 rounds for n nodes if n is even, otherwise n."""
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
