"""Attack 22: a host said that a packet of 4 GiB follows, before anything of it was verified; all of it was collected in
the memory."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from rigwright.core.errors import Unreachable
from rigwright.inventory.model import Host
from rigwright.ssh import connect

PACKET = b"\xff\xff\xff\xf4" + bytes(4)


def test_a_long_packet_ends_the_connection(home: Path) -> None:  # noqa: ARG001
    ended = threading.Event()
    others = threading.enumerate()

    def serve() -> None:
        opened, _ = listening.accept()
        opened.sendall(b"SSH-2.0-OpenSSH_9.9\r\n" + PACKET)
        opened.settimeout(30)
        while opened.recv(1 << 16):
            pass
        ended.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        host = Host("h", (), {"ansible_host": "127.0.0.1", "ansible_port": listening.getsockname()[1]})
        with pytest.raises(Unreachable, match="a packet of more than 1024 KiB"):
            connect.open_session(host, 20, lambda _abort: None)
        own = [
            thread for thread in threading.enumerate() if isinstance(thread, threading.Timer) and thread not in others
        ]
        assert all(timer.finished.is_set() for timer in own)
        assert ended.wait(10)
