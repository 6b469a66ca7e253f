"""ssh servers of paramiko on the loopback: what all of them do, and one that lets every key log in and forwards
connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import paramiko

VERSION = "SSH-2.0-OpenSSH_9.2p1"


@contextlib.contextmanager
def serving(
    host_key: Callable[[], paramiko.PKey],
    interface: Callable[[paramiko.Transport, socket.socket], paramiko.ServerInterface],
    configure: Callable[[Any], None] = lambda _transport: None,
) -> Iterator[int]:
    """Yields the port of a server with a host key. `interface` makes what answers a new connection; `configure` changes
    the server's side of it before it begins."""
    transports: list[paramiko.Transport] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    opened, _ = listening.accept()
                    transport = paramiko.Transport(opened)
                    transport.local_version = VERSION  # type: ignore[attr-defined]
                    transport.add_server_key(host_key())
                    configure(transport)
                    transports.append(transport)
                    with contextlib.suppress(paramiko.SSHException, EOFError):
                        transport.start_server(threading.Event(), interface(transport, opened))

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield listening.getsockname()[1]
        finally:
            for transport in transports:
                transport.close()


def forward(transport: paramiko.Transport, destination: tuple[str, int]) -> int:
    """Connects the channel that a client opens for it with a destination, in both directions; returns that it is
    allowed."""
    target = socket.create_connection(destination)
    threading.Thread(target=_forward, args=(transport, target), daemon=True).start()
    return paramiko.OPEN_SUCCEEDED  # type: ignore[attr-defined, no-any-return]


def _forward(transport: paramiko.Transport, target: socket.socket) -> None:
    channel = transport.accept(20)
    assert channel
    threading.Thread(target=_copy, args=(target, channel), daemon=True).start()
    _copy(channel, target)


def _copy(source: socket.socket | paramiko.Channel, target: socket.socket | paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError):
        while block := source.recv(65536):
            target.sendall(block)
    target.close()


class _Gateway(paramiko.ServerInterface):
    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport = transport

    def get_allowed_auths(self, *_user: Any) -> str:
        return "publickey"

    def check_auth_publickey(self, *_login: Any) -> int:
        return paramiko.AUTH_SUCCESSFUL  # type: ignore[attr-defined, no-any-return]

    def check_channel_direct_tcpip_request(self, *channel: Any) -> int:
        _number, _origin, destination = channel
        return forward(self._transport, destination)


def server(key: paramiko.PKey) -> contextlib.AbstractContextManager[int]:
    """Yields the port of a server with this host key, which lets every key log in and forwards connections."""
    return serving(lambda: key, lambda transport, _opened: _Gateway(transport))
