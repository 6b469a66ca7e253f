"""The packets of a connection on a socket pair: what is read and sent at once, and what a server cannot do."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import paramiko
import pytest

from rigwright.ssh.packets import LONGEST_PACKET, Packets


@pytest.fixture
def pair() -> Iterator[tuple[Packets, socket.socket]]:
    near, far = socket.socketpair()
    near.settimeout(0.1)
    far.settimeout(10)
    with near, far:
        yield Packets(near), far


def message(text: bytes) -> paramiko.Message:
    made = paramiko.Message()
    made.add_byte(b"\x02")  # MSG_IGNORE
    made.add_string(text)
    return made


def test_what_comes_with_the_version_is_read_next(pair: tuple[Packets, socket.socket]) -> None:
    packets, far = pair
    far.sendall(b"SSH-2.0-server\r\nabcdef")
    assert packets.readline(10) == "SSH-2.0-server"
    far.sendall(b"ghij")
    assert [packets.read_all(4), packets.read_all(4), packets.read_all(2)] == [b"abcd", b"efgh", b"ij"]


def test_parts_that_come_one_by_one(pair: tuple[Packets, socket.socket]) -> None:
    packets, far = pair
    far.sendall(b"ab")
    far.sendall(b"c")
    far.shutdown(socket.SHUT_WR)
    assert packets.read_all(3) == b"abc"
    with pytest.raises(EOFError):
        packets.read_all(1)


def test_a_packet_that_is_too_long_is_not_collected(pair: tuple[Packets, socket.socket]) -> None:
    packets, far = pair
    far.sendall((LONGEST_PACKET + 100).to_bytes(4, "big") + b"\0\0\0\0")
    with pytest.raises(paramiko.SSHException, match="more than 1024 KiB"):
        packets.read_message()


def test_a_socket_that_is_closed_ends_reading(pair: tuple[Packets, socket.socket]) -> None:
    packets, _far = pair
    packets.close()
    with pytest.raises(EOFError):
        packets.read_all(1)


def test_messages_that_are_sent_together(pair: tuple[Packets, socket.socket]) -> None:
    packets, far = pair
    with packets.together():
        packets.send_message(message(b"first"))
        with packets.together():
            packets.send_message(message(b"second"))
        far.setblocking(False)
        with pytest.raises(BlockingIOError):
            far.recv(100)
        far.settimeout(10)
    sent = far.recv(1000)
    assert sent.index(b"first") < sent.index(b"second")
    packets.send_message(message(b"third"))
    assert b"third" in far.recv(1000)


def test_messages_are_read_as_they_were_sent(pair: tuple[Packets, socket.socket]) -> None:
    packets, far = pair
    server = Packets(far)
    with server.together():
        for number in range(50):
            server.send_message(message(b"%d" % number * 1000))
    for number in range(50):
        kind, read = packets.read_message()
        assert (kind, read.get_string()) == (2, b"%d" % number * 1000)


def test_a_handshake_has_a_limit(pair: tuple[Packets, socket.socket]) -> None:
    packets, _far = pair
    packets.start_handshake(0.2)
    with pytest.raises(EOFError):
        packets.read_all(1)
