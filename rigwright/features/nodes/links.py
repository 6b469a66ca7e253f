"""Measures one end of the link between two nodes: host/node_link.py, on both at once."""

from __future__ import annotations

from msgspec import Struct

from rigwright.engine import onhost_program
from rigwright.engine.host_run import HostRun
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.features.nodes import facts as nodes
from rigwright.features.nodes.facts import Link, LinkEnd, Node

NAME = "link"
SECONDS = 2.0
"""How long each direction is measured."""
CONNECT_S, LIMIT_S = 25, 60
"""How long the ends wait for each other, and the limit of one measurement. The starts of two hosts are less than
CONNECT_S apart (assumed)."""
LEFT_S = 45
"""After so long without this machine an end ends by itself."""
STREAMS = 4


class Meeting(Struct, frozen=True):
    """Two nodes that measure their link. `a` listens on its port. `run`: what both say to each other, so that no third
    program is measured."""

    a: Node
    b: Node
    run: str


def measure(run: HostRun, meeting: Meeting) -> LinkEnd:
    """What the host of a run found at its end of the link. No process stays on it. Raises HostError, Unreachable."""
    listens = run.host.name == meeting.a.name
    own, peer = (meeting.a, meeting.b) if listens else (meeting.b, meeting.a)
    words = ["listen" if listens else "connect", "--run", meeting.run, "--address", own.address, "--peer", peer.address]
    words += ["--port", str(meeting.a.port), "--streams", str(STREAMS), "--seconds", f"{SECONDS:g}"]
    words += ["--connect-s", str(CONNECT_S), "--timeout-s", str(LIMIT_S)]
    program = OnhostProgram("node_link.py", words, LIMIT_S + 10, NAME, watched_s=LEFT_S)
    return onhost_program.result(run, program, nodes.linked)


def link_of_ends(meeting: Meeting, of_a: LinkEnd | None, of_b: LinkEnd | None) -> Link:
    """The link as both ends saw it; None for an end that has no document."""
    a, b = meeting.a, meeting.b
    at, error = _error(meeting, of_a, of_b)
    to_b, to_a = (end.received.gbit_s if end and end.received else None for end in (of_b, of_a))
    rtt_us = of_b.rtt_us if of_b else None
    return Link(a.name, b.name, to_b, to_a, rtt_us, at, error, _past(a, of_a), _past(b, of_b))


def _error(meeting: Meeting, of_a: LinkEnd | None, of_b: LinkEnd | None) -> tuple[str, str]:
    """The node whose error says most, and the error; ("", "") without one. That of a listener without its port comes
    first, then that of the end that connects."""
    if of_a is None or of_b is None:
        return (meeting.a if of_a is None else meeting.b).name, nodes.GONE
    ends = [(meeting.a.name, of_a), (meeting.b.name, of_b)]
    if of_a.stage != "start":
        ends.reverse()
    return next(((name, end.error) for name, end in ends if end.error), ("", ""))


def _past(node: Node, end: LinkEnd | None) -> tuple[str, ...]:
    """Interfaces other than the chosen one, and those on top of it or below it, that carried the bytes. A bridge, a
    bond or a VLAN moves the same bytes as its port, so nothing is said where the chosen interface carried its share
    too."""
    if end is None or end.error or not end.moved:
        return ()
    most = max(end.moved.values())
    if end.moved.get(node.interface, 0) * 2 > most:
        return ()
    return tuple(sorted(name for name, size in end.moved.items() if name != node.interface and size * 2 > most))
