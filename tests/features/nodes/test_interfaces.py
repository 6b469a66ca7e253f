"""The choice of the interface and the adapters of each node, in what nodes differ, and the rounds of pairs."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from rigwright.core.errors import HostError
from rigwright.facts.network import HcaPort, Interface, Network, Route
from rigwright.features.nodes.interfaces import NodeNetwork, choose, differences, environment, rounds
from rigwright.features.nodes.variables import Nodes


def _interface(name: str, *addresses: str, mbit: int | None = 1000, up: bool = True) -> Interface:
    return Interface(name, "ethernet", up, mbit, 1500, "mlx5_core", "", "", addresses)


def _node(number: int, *more: Interface, hcas: tuple[HcaPort, ...] = (), wanted: Nodes | None = None) -> NodeNetwork:
    """A node with a slow port that ssh uses, docker's bridge, which has one address everywhere, and more interfaces."""
    own = _interface("eno1", f"192.168.1.{number}/24")
    network = Network((own, _interface("docker0", "172.17.0.1/16"), *more), (Route("0.0.0.0/0", "eno1", 0),))
    return NodeNetwork(f"n{number}", f"192.168.1.{number}", network, hcas, wanted or Nodes())


def _port(name: str = "mlx5_0", state: str = "ACTIVE", gbit: float = 100.0, layer: str = "InfiniBand") -> HcaPort:
    return HcaPort(name, 1, state, "LinkUp" if state == "ACTIVE" else "Polling", gbit, "4X EDR", layer, "", ("ens1",))  # type: ignore[arg-type]


def test_the_fastest_network_of_all_is_taken() -> None:
    three = [_node(number, _interface("ens1", f"10.0.0.{number}/24", mbit=25000)) for number in (1, 2, 3)]
    found = choose(three)
    assert [(node.interface, node.address) for node in found] == [("ens1", f"10.0.0.{n}") for n in (1, 2, 3)]
    why = "the fastest network that all nodes share, 10.0.0.0/24 (25 Gb/s); also shared: 192.168.1.0/24"
    assert found[0].why == why
    assert found[0].hca_why == "TCP: no node has an InfiniBand or RoCE adapter"
    assert environment(found[0])["NCCL_SOCKET_IFNAME"] == "=ens1"


def test_a_network_that_one_node_lacks_is_not_taken() -> None:
    fast = _interface("ens1", "10.0.0.1/24", mbit=25000)
    found = choose([_node(1, fast), _node(2, _interface("ens1", "10.0.0.2/24", up=False)), _node(3)])
    assert [node.interface for node in found] == ["eno1"] * 3
    assert found[0].why.startswith("the only network")


def test_one_address_on_two_nodes_is_no_network() -> None:
    same = _interface("br0", "10.5.0.1/24", mbit=100000)
    assert {node.interface for node in choose([_node(1, same), _node(2, same)])} == {"eno1"}


def test_two_names_of_one_machine() -> None:
    with pytest.raises(HostError) as caught:
        choose([_node(1), replace(_node(1), name="also")])
    assert "n1 and also are one machine: both have eno1 192.168.1.1/24" in str(caught.value)
    assert "correct ansible_host of also" in caught.value.fix


def test_an_interface_that_is_named_wins_over_the_fastest() -> None:
    fast = [_interface("ens1", f"10.0.0.{number}/24", mbit=25000) for number in (1, 2)]
    found = choose([_node(1, fast[0], wanted=Nodes(interface="eno1")), _node(2, fast[1])])
    assert [(node.interface, node.why[:8]) for node in found] == [("eno1", "set by n"), ("eno1", "the only")]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Nodes(interface="ens9"), "the host has no interface ens9"),
        (Nodes(interface="lo"), "lo reaches no other node"),
        (Nodes(interface="ens1"), "ens1 has no link"),
        (Nodes(hca="mlx5_7:1"), "the host has no port mlx5_7:1"),
        (Nodes(hca="mlx5_1:1"), "mlx5_1:1 is DOWN (Polling)"),
    ],
)
def test_what_is_named_and_cannot_be_used(wanted: Nodes, said: str) -> None:
    ports = (_port(), _port("mlx5_1", "DOWN"))
    lo = replace(_interface("lo", "127.0.0.1/8"), kind="loopback")
    first = replace(_node(1, _interface("ens1", up=False), lo, hcas=ports, wanted=wanted), origin="hosts.yml:7")
    with pytest.raises(HostError, match="nodes") as caught:
        choose([first, _node(2, hcas=ports)])
    assert caught.value.found == said
    assert caught.value.where.endswith(" of n1 (hosts.yml:7)")


def test_routes_are_followed_where_no_network_is_shared() -> None:
    of_a = Network((_interface("e", "10.1.0.1/24"),), (Route("0.0.0.0/0", "e", 0),))
    of_b = Network((_interface("f", "10.2.0.1/24"),), (Route("10.1.0.0/16", "f", 0),))
    first, second = NodeNetwork("a", "10.1.0.1", of_a, (), Nodes()), NodeNetwork("b", "10.2.0.1", of_b, (), Nodes())
    assert [(node.interface, node.why) for node in choose([first, second])] == [
        (name, "no network is shared; the routes to the others go through it") for name in ("e", "f")
    ]
    unreached = replace(second, network=replace(second.network, routes=()))
    with pytest.raises(HostError, match=r"no network joins all nodes: a has e 10\.1\.0\.1/24; b has f 10\.2\.0\.1/24"):
        choose([first, unreached])


def test_infiniband_is_taken_where_every_node_has_a_link() -> None:
    ports = (_port(), _port("mlx5_1", "DOWN"), _port("mlx5_2", gbit=25.0))
    found = choose([_node(1, hcas=ports), _node(2, hcas=ports)])
    adapters = [(node.hcas, node.hca_gbit_s, node.link_layer) for node in found]
    assert adapters == [(("mlx5_0:1",), 100.0, "InfiniBand")] * 2
    assert found[0].hca_why == "InfiniBand: the fastest ports with a link; mlx5_1:1 is DOWN (100 Gb/s)"
    assert environment(found[0])["NCCL_IB_HCA"] == "=mlx5_0:1"


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ((_port(state="DOWN"),), "TCP: n2: mlx5_0:1 is DOWN (Polling)"),
        ((), "TCP: n2: no adapter"),
        ((_port(layer="Ethernet"),), "TCP: n2: mlx5_0:1 has no interface with an address"),
    ],
)
def test_tcp_is_taken_where_a_node_has_no_link(second: tuple[HcaPort, ...], why: str) -> None:
    found = choose([_node(1, hcas=(_port(),)), _node(2, hcas=second)])
    assert [node.hca_why for node in found] == [why] * 2
    names = {"NCCL_SOCKET_IFNAME": "=eno1", "GLOO_SOCKET_IFNAME": "eno1"}
    assert environment(found[0]) == {**names, "NCCL_IB_DISABLE": "1"}


def test_roce_needs_an_interface_with_an_address() -> None:
    port = _port(gbit=25.0, layer="Ethernet")
    both = [_node(n, _interface("ens1", f"10.0.0.{n}/24", mbit=25000), hcas=(port,)) for n in (1, 2)]
    assert [(node.hcas, node.link_layer) for node in choose(both)] == [(("mlx5_0:1",), "Ethernet")] * 2
    none = replace(both[1], wanted=Nodes(hca="none"))
    assert choose([both[0], none])[0].hca_why == "TCP: nodes.hca is none on n2"


def test_the_node_that_differs_is_named() -> None:
    same = {"driver": "535.183.01", "torch": "2.7.1"}
    found = differences({"a": same, "b": same, "c": {**same, "driver": "550.54.14"}})
    assert found == ("driver: c has 550.54.14; a, b 535.183.01",)
    assert differences({"a": {"driver": "1"}, "b": {"driver": ""}}) == ("driver: a 1, b none",)
    assert differences({"a": same, "b": dict(same)}) == ()


@pytest.mark.parametrize("number", [2, 3, 4, 5, 8, 9])
def test_every_pair_has_one_round_and_no_round_has_a_node_twice(number: int) -> None:
    names = [f"n{at}" for at in range(number)]
    found = rounds(names)
    assert sorted(pair for each in found for pair in each) == sorted(itertools.combinations(names, 2))
    assert len(found) == number - 1 + number % 2
    assert all(len({name for pair in each for name in pair}) == 2 * len(each) for each in found)
