"""host/node_link.py: two ends on loopback, and what keeps them apart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from rigwright.core import features
from rigwright.core.command import Result
from rigwright.facts import parsed
from rigwright.features.nodes import links as node_links
from rigwright.features.nodes.facts import LinkEnd, Node, linked
from rigwright.features.nodes.links import Meeting

PROGRAM = features.host_programs()["node_link.py"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(features.host_programs()["nccl_host.py"].parent)}
A, B = (Node(name, f"127.0.0.{number}", "lo", None, "") for name, number in (("a", 1), ("b", 2)))


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """Yields a stack that ends the programs of a test."""
    with ExitStack() as stack:
        yield stack


def _start(running: ExitStack, role: str, port: int, *more: str, run: str = "r1") -> subprocess.Popen[bytes]:
    own, peer = (A, B) if role == "listen" else (B, A)
    words = [role, "--run", run, "--address", own.address, "--peer", peer.address, "--port", str(port), *more]
    argv, pipe = [sys.executable, str(PROGRAM), *words], subprocess.PIPE
    program = subprocess.Popen(argv, env=ENVIRONMENT, stdout=pipe, stderr=pipe)
    running.enter_context(program)
    running.callback(program.kill)
    return program


def _end(program: subprocess.Popen[bytes]) -> LinkEnd:
    out, said = program.communicate(timeout=20)
    assert program.returncode == 0, said
    found = parsed(linked, Result(0, out))
    assert isinstance(found, LinkEnd), found
    return found


def test_both_directions_are_counted_by_the_receiver(running: ExitStack) -> None:
    port = free_port()
    words = ("--seconds", "0.4", "--streams", "2")
    both = [_start(running, role, port, *words) for role in ("connect", "listen")]
    connects, listens = map(_end, both)
    assert (connects.stage, listens.stage, connects.error, listens.error) == ("done", "done", None, None)
    link = node_links.link_of_ends(Meeting(A, B, "r1"), listens, connects)
    assert listens.received
    assert connects.received
    assert (link.a_to_b_gbit_s, link.b_to_a_gbit_s) == (connects.received.gbit_s, listens.received.gbit_s)
    assert link.slower_gbit_s > 0.05
    assert link.rtt_us
    assert link.rtt_us < 1e6
    assert (link.error, link.past_a) == ("", ())


def test_a_stranger_is_not_measured(running: ExitStack) -> None:
    port = free_port()
    listens = _start(running, "listen", port, "--connect-s", "0.8", "--seconds", "0.2")
    stranger = _start(running, "connect", port, "--connect-s", "0.5", "--timeout-s", "1", run="another")
    found = _end(listens)
    assert (found.stage, found.error) == ("connect", "no connection from 127.0.0.2 within 0.8 s")
    assert _end(stranger).error is not None


def test_a_port_that_is_taken_is_named_first(running: ExitStack) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listens = _end(_start(running, "listen", port))
        connects = _end(_start(running, "connect", port, "--timeout-s", "0.5"))
    assert (listens.stage, listens.error) == ("start", "the port is in use by another program")
    link = node_links.link_of_ends(Meeting(A, B, "r1"), listens, connects)
    assert (link.at, link.error) == ("a", "the port is in use by another program")


def test_a_node_that_does_not_listen(running: ExitStack) -> None:
    found = _end(_start(running, "connect", free_port(), "--connect-s", "0.3"))
    assert found.error == "refused: nothing listens there, or a firewall rejects it"
    assert (found.received, found.rtt_us) == (None, None)
    link = node_links.link_of_ends(Meeting(A, B, "r1"), None, found)
    assert (link.at, link.error) == ("a", "its measurement did not end")


def test_it_ends_when_nobody_watches_and_after_its_time_limit(running: ExitStack, tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    watched.touch()
    os.utime(watched, (time.time() - 100, time.time() - 100))
    program = _start(running, "listen", free_port(), "--watched", str(watched), "--watched-s", "50")
    assert program.wait(10) == -signal.SIGTERM
    listens = _start(running, "listen", free_port(), "--timeout-s", "0.5", "--connect-s", "150")
    began = time.monotonic()
    assert _end(listens).error is not None
    assert time.monotonic() - began < 60


def test_bytes_that_went_over_another_interface() -> None:
    end = LinkEnd(1, "listen", "10.0.0.1", "10.0.0.2", 29400, 4, "done", None, None, {"eno1": 9_000_000}, None)
    node = Node("a", "10.0.0.1", "ens1", 10000, "")
    other = Node("b", "10.0.0.2", "ens1", 10000, "")
    assert node_links.link_of_ends(Meeting(node, other, "r"), end, end).past_a == ("eno1",)
    bridged = LinkEnd(1, "listen", "", "", 29400, 4, "done", None, None, {"ens1": 9_000_000, "br0": 9_000_000}, None)
    assert node_links.link_of_ends(Meeting(node, other, "r"), bridged, bridged).past_a == ()


def test_errors_have_words(module: Callable[[str], Any]) -> None:
    words_of = module("node_link").words_of
    assert words_of(TimeoutError()) == "no answer: a firewall drops it, or the link is down"
    assert words_of(OSError(113, "No route to host")).startswith("no route to the host")
