"""The network of a host: interfaces, routes, ports of InfiniBand and RoCE adapters, and firewalls."""

from __future__ import annotations

import ipaddress
import re
from typing import Literal

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.facts import Fact, Unavailable, whole

MOST = 256
"""The most interfaces, addresses, routes or ports that are read of one host."""
Kind = Literal["ethernet", "infiniband", "loopback", "other"]
_KINDS: dict[str, Kind] = {"1": "ethernet", "32": "infiniband", "772": "loopback"}
"""By the ARPHRD number of /sys/class/net/NAME/type."""


class Interface(Struct, frozen=True):
    """A network interface. `speed_mbit`: megabits per second; None if unknown (virtual machines, bridges).
    `addresses`: IPv4 of global scope, as 10.0.0.5/24. `bus_id`: of its PCI device, "" without one. `made_by`: the kind
    of software that made it (bridge, bond, vlan); "" for a port."""

    name: str
    kind: Kind
    up: bool
    speed_mbit: int | None
    mtu: int
    driver: str
    bus_id: str
    made_by: str
    addresses: tuple[str, ...]


class Route(Struct, frozen=True):
    """A route of the main table. `network`: 10.0.0.0/24; 0.0.0.0/0 for the default route."""

    network: str
    interface: str
    metric: int


class Network(Struct, frozen=True):
    """The interfaces and IPv4 routes of a host."""

    interfaces: tuple[Interface, ...]
    routes: tuple[Route, ...]

    def interface(self, name: str) -> Interface | None:
        """The interface of that name."""
        return next((interface for interface in self.interfaces if interface.name == name), None)

    def way_to(self, address: str) -> str:
        """The name of the interface of the most specific route to an address; "" without a route."""
        to, best, way = ipaddress.IPv4Address(address), (-1, 0), ""
        for route in self.routes:
            network = ipaddress.IPv4Network(route.network)
            if to in network and (network.prefixlen, -route.metric) > best:
                best, way = (network.prefixlen, -route.metric), route.interface
        return way


_NETWORK = """
PATH=$PATH:/usr/sbin:/sbin
command -v ip >/dev/null || exit 69
word() { w=; { IFS= read -r w <"$1"; } 2>/dev/null; printf '%s\\t' "${w:--}"; }
for path in /sys/class/net/*; do
  [ -e "$path/type" ] || continue
  printf '%s\\t' "${path##*/}"
  for name in type operstate carrier speed mtu; do word "$path/$name"; done
  made=$(sed -n 's/^DEVTYPE=//p' "$path/uevent" 2>/dev/null | head -n 1)
  device=$(readlink -f "$path/device" 2>/dev/null)
  driver=$(readlink "$path/device/driver" 2>/dev/null)
  printf '%s\\t%s\\t%s\\n' "${made:--}" "${device##*/}" "${driver##*/}"
done
echo --; ip -4 -o addr show scope global
echo --; ip -4 route show table main
"""
_WORD = r"[!-.0-9;-?A-~]{1,15}"
"""The name of an interface: printable, without / : @."""
_NAME = lazy_re.compile(_WORD)
_ADDRESS = lazy_re.compile(
    rf"\d+: +(?P<name>{_WORD})(?:@\S+)? +inet (?P<address>\d[\d.]*)(?: peer \S+?)?(?P<prefix>/\d+)? .*"
)
_ROUTE = lazy_re.compile(
    r"(?:unicast )?(?P<to>default|\d[\d.]*(?:/\d+)?) (?:.* )?dev (?P<name>" + _WORD + r")(?P<rest> .*)?"
)
_BUS_ID = lazy_re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


def _network(result: Result) -> Network:
    if result.code == 69:
        raise Unavailable("the host has no program ip", "sudo apt-get install iproute2")
    parts: list[list[str]] = [[]]
    for line in result.lines:
        if line == "--":
            parts.append([])
        else:
            parts[-1].append(line)
    if len(parts) != 3:
        raise ValueError("not three lists")
    if max(map(len, parts)) > MOST:
        raise ValueError(f"more than {MOST} interfaces, addresses or routes")
    ports, address_lines, routes = parts
    addresses: dict[str, list[str]] = {}
    for line in address_lines:
        match = _ADDRESS.fullmatch(line)
        if match is None:
            raise ValueError(f"{line[:80]!r} is no address")
        address = ipaddress.IPv4Interface(match["address"] + (match["prefix"] or ""))
        addresses.setdefault(match["name"], []).append(address.with_prefixlen)
    interfaces = tuple(_interface(line, addresses) for line in ports)
    return Network(interfaces, tuple(route for line in routes if (route := _route(line))))


def _interface(line: str, addresses: dict[str, list[str]]) -> Interface:
    name, kind, state, carrier, speed, mtu, made_by, device, driver = line.split("\t")
    if not (_NAME.fullmatch(name) and re.fullmatch(r"[\w-]{0,40}", made_by) and re.fullmatch(r"[\w-]{0,64}", driver)):
        raise ValueError(f"{line[:80]!r} is no interface")
    mbit = host_text.integer(speed) if re.fullmatch(r"\d+", speed) else 0
    return Interface(
        name, _KINDS.get(kind, "other"), state in ("up", "unknown") and carrier != "0",
        mbit if 0 < mbit < 10**8 else None, host_text.integer(mtu) if mtu != "-" else 0, driver,
        device if _BUS_ID.fullmatch(device) else "",
        "" if made_by == "-" else made_by, tuple(addresses.get(name, ())),
    )  # fmt: skip


def _route(line: str) -> Route | None:
    """The route of a line; None without an interface, such as `unreachable`, and for several next hops."""
    match = _ROUTE.fullmatch(line.rstrip())
    if match is None or "linkdown" in (match["rest"] or "").split():
        return None
    metric = re.search(r" metric (\d{1,10})\b", match["rest"] or "")
    to = "0.0.0.0/0" if match["to"] == "default" else match["to"]
    return Route(ipaddress.IPv4Network(to).with_prefixlen, match["name"], int(metric[1]) if metric else 0)


network = Fact("network.network", script(_NETWORK, reads=True), _network, kept=whole)
"""The interfaces and IPv4 routes. Unavailable without the program `ip`."""


class HcaPort(Struct, frozen=True):
    """A port of an InfiniBand or RoCE adapter, from sysfs. `state`: ACTIVE, INIT, ARMED or DOWN. `physical`: LinkUp,
    Polling, Disabled. `rate_gbit_s`: of the link now; `rate`: 4X EDR. `interfaces`: network interfaces of the
    adapter."""

    device: str
    port: int
    state: str
    physical: str
    rate_gbit_s: float
    rate: str
    link_layer: Literal["InfiniBand", "Ethernet"]
    bus_id: str
    interfaces: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name in NCCL_IB_HCA: mlx5_0:1."""
        return f"{self.device}:{self.port}"

    @property
    def active(self) -> bool:
        """Whether it can carry data."""
        return self.state == "ACTIVE"


_HCAS = """
for port in /sys/class/infiniband/*/ports/*; do
  [ -e "$port/state" ] || continue
  device=${port%/ports/*}; printf '%s\\t%s' "${device##*/}" "${port##*/}"
  for name in state phys_state rate link_layer; do
    w=; { IFS= read -r w <"$port/$name"; } 2>/dev/null; printf '\\t%s' "$w"
  done
  at=$(readlink -f "$device/device" 2>/dev/null); nets=$(ls "$device/device/net" 2>/dev/null | tr '\\n' ' ')
  printf '\\t%s\\t%s\\n' "${at##*/}" "$nets"
done; :
"""
_RATE = lazy_re.compile(r"(?P<gbit>\d{1,4}(?:\.\d{1,2})?) Gb/sec(?: \((?P<rest>[\w. ]{1,20})\))?")


_FORMS = (r"[\w.-]{1,63}", r"[A-Z_]{2,20}", r"[A-Za-z_]{0,30}")
"""The forms of the name, the state and the physical state of an adapter's port."""


def _hcas(result: Result) -> tuple[HcaPort, ...]:
    if len(result.lines) > MOST:
        raise ValueError(f"more than {MOST} ports")
    return tuple(_hca(line) for line in result.lines)


def _hca(line: str) -> HcaPort:
    device, port, state, physical, rate, layer, at, nets = line.split("\t")
    rates = _RATE.fullmatch(rate)
    state, physical = (re.sub(r"^\d+: *", "", word) for word in (state, physical))
    names = tuple(nets.split())
    formed = all(map(re.fullmatch, _FORMS, (device, state, physical)))
    if not formed or not all(map(_NAME.fullmatch, names)) or rates is None:
        raise ValueError(f"{line[:80]!r} is no port of an adapter")
    if layer not in ("InfiniBand", "Ethernet"):
        raise ValueError(f"the link layer {layer[:40]!r}")
    return HcaPort(
        device, host_text.integer(port), state, physical, float(rates["gbit"]), rates["rest"] or "",
        "InfiniBand" if layer == "InfiniBand" else "Ethernet", at if _BUS_ID.fullmatch(at) else "", names,
    )  # fmt: skip


hcas = Fact("network.hcas", script(_HCAS, reads=True), _hcas, kept=whole)
"""The ports of InfiniBand and RoCE adapters, with or without a link; () without an adapter or its kernel module."""

_FIREWALL = """
for unit in ufw firewalld nftables iptables netfilter-persistent; do
  [ "$(systemctl is-active "$unit" 2>/dev/null)" = active ] || continue
  [ "$unit" != ufw ] || grep -q '^ENABLED=yes' /etc/ufw/ufw.conf 2>/dev/null || continue
  echo "$unit"
done; :
"""


def _firewall(result: Result) -> tuple[str, ...]:
    for line in result.lines:
        if not re.fullmatch(r"[a-z-]{1,30}", line):
            raise ValueError(f"{line[:80]!r} is no unit")
    return tuple(result.lines)


firewalls = Fact("network.firewalls", script(_FIREWALL), _firewall)
"""The units of firewalls that are active: ufw (only where it is enabled), firewalld, nftables; () without one."""
