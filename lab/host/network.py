"""The lab's network: a bridge, and for each host a network namespace with eth0. No NAT, no forwarding, no route out."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import struct
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from lab.base.paths import RUN, TAG, write
from lab.base.programs import run
from rigwright.core.errors import HostError, InputError

POOL = "RIGWRIGHT_LAB_NETWORK"
"""The environment variable with the network that the lab takes a free /24 from (10.99.0.0/16 when unset)."""

FIRST, LAST = 10, 250
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B
_NETNS = Path("/run/netns")
_SUBNET = RUN / "subnet"


def bridge() -> str:
    """Returns the bridge's name."""
    return TAG


def subnet() -> IPv4Network | None:
    """Returns the network on the bridge; None when there is no bridge."""
    asked = struct.pack("256s", bridge().encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            parts = [fcntl.ioctl(any_socket, ask, asked)[20:24] for ask in (_SIOCGIFADDR, _SIOCGIFNETMASK)]
        except OSError:
            return None
    return IPv4Network((parts[0], str(IPv4Address(parts[1]))), strict=False)


def gateway() -> IPv4Address:
    """Returns the machine's own address on the bridge. Raises HostError when there is none."""
    own = subnet()
    if own is None:
        raise HostError("lab", f"no bridge {bridge()}", fix="sudo .venv/bin/invoke lab.up")
    return own[1]


def bridge_up() -> IPv4Network:
    """Creates the bridge with a free /24 if there is none, and returns its network. It prefers the /24 of last time."""
    own = subnet()
    if own is None:
        run(["ip", "link", "delete", bridge()], check=False)
        own = _free()
        _batch(
            f"link add {bridge()} address {_mac(1)} type bridge forward_delay 0",
            f"address add {own[1]}/{own.prefixlen} dev {bridge()}",
            f"link set {bridge()} up",
        )
        write(_SUBNET, f"{own}\n")
    return own


def _free() -> IPv4Network:
    """Returns a /24 of the pool that overlaps with no route or address of the machine."""
    try:
        pool = IPv4Network(os.environ.get(POOL, "10.99.0.0/16"))
        choices = list(pool.subnets(new_prefix=24))
    except ValueError as wrong:
        raise InputError(POOL, str(wrong), "a network of /24 or larger such as 10.99.0.0/16") from wrong
    routes = json.loads(run(["ip", "-j", "-4", "route", "show", "table", "all"]).stdout or "[]")
    used = [IPv4Network(r["dst"], strict=False) for r in routes if r.get("dst", "default") != "default"]
    before = _SUBNET.read_text().strip() if _SUBNET.exists() else ""
    for choice in sorted(choices, key=lambda c: str(c) != before):
        if not any(choice.overlaps(other) for other in used):
            return choice
    raise InputError(
        POOL, f"every /24 of {pool} is in use on this machine", "a free one", f"export {POOL}=10.200.0.0/16"
    )


def address(number: int) -> IPv4Address:
    """Returns the address of the host with this number. Raises HostError when there is no bridge."""
    return gateway() + (number - 1)


def namespace(name: str) -> Path:
    """Returns the path of the host's network namespace."""
    return _NETNS / f"{TAG}-{name}"


def _link(name: str) -> str:
    """Returns the interface name of the machine's end of the host's cable.

    It has at most 15 characters, so it is a hash; the interface's alias is the host's name.
    """
    return TAG + hashlib.sha256(name.encode()).hexdigest()[:6]


def _mac(number: int) -> str:
    """Returns a MAC address made from the number, not from the host's name.

    Other hosts remember the MAC address of a number for half a minute after its host is removed.
    """
    return f"52:54:{TAG[2:4]}:{TAG[4:6]}:{TAG[6:8]}:{number:02x}"


def attach(name: str, number: int) -> None:
    """Connects the host's eth0 to the bridge and gives it its address, whatever an earlier boot changed."""
    here, cable = namespace(name), _link(name)
    if not here.exists() or run(["ip", "-n", here.name, "link", "show", "eth0"], check=False).returncode:
        detach(name)
        run(["ip", "netns", "add", here.name])
        _batch(f"link add {cable} type veth peer name eth0 address {_mac(number)} netns {here.name}")
    _batch(f"link set {cable} alias {name} master {bridge()} up")
    lines = (
        "link set lo up",
        "link set eth0 up",
        "address flush dev eth0",
        f"address replace {address(number)}/24 dev eth0",
    )
    _batch(*lines, inside=here.name)


def unplug(name: str) -> None:
    """Takes the cable and the address from the host's eth0, until `attach`."""
    _batch("address flush dev eth0", "link set eth0 down", inside=namespace(name).name)


def move(name: str) -> None:
    """Gives the host's eth0 an address of another network, until `attach`."""
    _batch("address flush dev eth0", "address replace 198.51.100.7/24 dev eth0", inside=namespace(name).name)


def limit(name: str, mbit: int) -> None:
    """Limits what goes to and from the host's eth0 to so many megabits a second, also after a reboot. Needs the
    kernel's sch_tbf."""
    bucket = ["tbf", "rate", f"{mbit}mbit", "burst", "256k", "latency", "50ms"]
    run(["tc", "-n", namespace(name).name, "qdisc", "replace", "dev", "eth0", "root", *bucket])
    run(["tc", "qdisc", "replace", "dev", _link(name), "root", *bucket])


def unlimit(name: str) -> None:
    """Takes the limits away; does nothing where there are none."""
    run(["tc", "-n", namespace(name).name, "qdisc", "delete", "dev", "eth0", "root"], check=False)
    run(["tc", "qdisc", "delete", "dev", _link(name), "root"], check=False)


def detach(name: str) -> None:
    """Removes the host's namespace and its cable."""
    run(["ip", "link", "delete", _link(name)], check=False)
    if namespace(name).exists():
        run(["ip", "netns", "delete", namespace(name).name])


def attached() -> set[str]:
    """Returns the hosts that have a namespace."""
    return {path.name.removeprefix(f"{TAG}-") for path in _NETNS.glob(f"{TAG}-*")}


def remove() -> None:
    """Removes every interface of this lab: the bridge, and cables whose namespace was lost."""
    for link in json.loads(run(["ip", "-j", "link", "show"]).stdout):
        if link["ifname"].startswith(TAG):
            run(["ip", "link", "delete", link["ifname"]], check=False)


def _batch(*lines: str, inside: str = "") -> None:
    run(["ip", *(["-n", inside] if inside else []), "-batch", "-"], stdin="\n".join(lines) + "\n")
