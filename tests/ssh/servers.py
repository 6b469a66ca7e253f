"""ssh servers of paramiko on the loopback: each offers a host key, lets every key log in, and forwards connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import paramiko


class _Gateway(paramiko.ServerInterface):
    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport = transport

    def get_allowed_auths(self, *_user: Any) -> str:
        return "publickey"

    def check_auth_publickey(self, *_login: Any) -> int:
        return paramiko.AUTH_SUCCESSFUL  # type: ignore[attr-defined, no-any-return]

    def check_channel_direct_tcpip_request(self, *channel: Any) -> int:
        _number, _origin, destination = channel
        target = socket.create_connection(destination)
        threading.Thread(target=self._forward, args=(target,), daemon=True).start()
        return paramiko.OPEN_SUCCEEDED  # type: ignore[attr-defined, no-any-return]

    def _forward(self, target: socket.socket) -> None:
        channel = self._transport.accept(10)
        assert channel
        threading.Thread(target=_copy, args=(target, channel), daemon=True).start()
        _copy(channel, target)


def _copy(source: socket.socket | paramiko.Channel, target: socket.socket | paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError):
        while block := source.recv(65536):
            target.sendall(block)
    target.close()


@contextlib.contextmanager
def server(key: paramiko.PKey) -> Iterator[int]:
    """Yields the port of a server with this host key."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    opened, _ = listening.accept()
                    transport = paramiko.Transport(opened)
                    transport.add_server_key(key)
                    with contextlib.suppress(paramiko.SSHException, EOFError):
                        transport.start_server(threading.Event(), _Gateway(transport))

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
