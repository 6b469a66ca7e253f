"""A login with fewer round trips: it sends the requests together, where paramiko waits for each answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import paramiko
from paramiko.auth_handler import AuthHandler
from paramiko.common import (
    DEFAULT_WINDOW_SIZE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    cMSG_CHANNEL_OPEN,
    cMSG_CHANNEL_REQUEST,
)
from paramiko.packet import Packetizer

LONGEST_PACKET = 1 << 20
"""Bytes. RFC 4253 asks for 35000; OpenSSH sends up to 256 KiB."""
MOST_UNREAD = 2 * DEFAULT_WINDOW_SIZE
"""Bytes of a channel that were not read yet; a server may send as many as the window."""
_LOOK_S = 1.0
"""How often a thread that waits for the server looks whether the connection has ended, seconds."""
_IN_ORDER = "SSH-2.0-OpenSSH_"
"""The version prefix of servers that process pipelined requests in order, and give the first channel number 0."""


class _BoundedPackets(Packetizer):
    """The packets of a connection. A too long packet is an error; paramiko would store up to 4 GiB of it."""

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        """As paramiko's method. Raises SSHException for a packet that is too long."""
        if n > LONGEST_PACKET:
            raise paramiko.SSHException(f"a packet of more than {LONGEST_PACKET >> 10} KiB")
        return super().read_all(n, check_rekey)

    def close(self) -> None:
        """As paramiko's method, and ends the timer of the key exchange, for whose thread Python would wait at exit."""
        self.complete_handshake()
        super().close()


class Login(paramiko.Transport):
    """Sends the service request, the authentication request, and the request for the channel of `early_exec` together.

    Set `early_exec` only for a key that is likely to be accepted, because sshd logs a channel request before a login.
    `sent_early_exec`: it was requested together with the login. `accept_host_key` raises an error for a host key that
    is not accepted, before anything but the key exchange is sent.
    """

    _active_check_timeout = 2.0
    """How often its thread looks for a keepalive that is due, seconds; paramiko's 0.1 s are much on a thousand idle
    connections. The thread also ends when the socket is shut down."""
    early_exec = ""
    sent_early_exec = False
    accept_host_key: Callable[[paramiko.PKey], None] | None = None
    _channel_handler_table: ClassVar[dict[int, Callable[..., None]]] = {}  # filled below
    _opening: _Opening | None = None

    def __init__(self, sock: Any, **options: Any) -> None:
        super().__init__(sock, packetizer_class=_BoundedPackets, **options)

    def start_client(self, event: threading.Event | None = None, timeout: float | None = None) -> None:
        """Like paramiko's method, and then calls `accept_host_key`."""
        ready = event or threading.Event()
        super().start_client(ready, timeout)
        until = time.monotonic() + timeout if timeout is not None else float("inf")
        while not ready.wait(min(_LOOK_S, max(0.0, until - time.monotonic()))):
            if not self.is_active() or time.monotonic() >= until:
                break
        if not self.is_active():
            raise self.get_exception() or paramiko.SSHException("Negotiation failed.")
        if self.accept_host_key:
            self.accept_host_key(self.get_remote_server_key())

    def auth_publickey(self, username: str, key: paramiko.PKey, event: threading.Event | None = None) -> list[str]:
        """Like paramiko's method, but does not wait for the answers one by one."""
        if event is not None:
            return super().auth_publickey(username, key, event)
        if not self.remote_version.startswith(_IN_ORDER):
            super().auth_publickey(username, key, done := _Patient())
            assert self.auth_handler is not None
            answered: list[str] = self.auth_handler.wait_for_response(done)
            return answered
        if not self.is_active() or not self.initial_kex_done:
            raise paramiko.SSHException("No existing session")
        done = _Patient()
        handler = self.auth_handler = PipelinedAuth(self)
        handler.auth_publickey(username, key, done)
        opening = None
        if self.early_exec:
            self.sent_early_exec = True
            opening = _Opening(self, self.early_exec)
        self.early_exec = ""  # a further key is less likely to be accepted
        further: list[str] = handler.wait_for_response(done)
        self._opening = None if further else opening
        return further

    def first_channel(self, timeout_s: float) -> tuple[paramiko.Channel, str] | None:
        """The channel that was requested with the login, and its program; None if it did not open. Raises SSHException
        if the number of the channel is not 0."""
        opening, self._opening = self._opening, None
        channel = opening.channel(timeout_s) if opening else None
        if opening is None or channel is None:
            return None
        if channel.remote_chanid != 0:
            raise paramiko.SSHException("the first channel is not 0")
        return channel, opening.program


def exec_request(channel: int, program: str) -> paramiko.Message:
    """The message that requests a program on the remote channel with that number."""
    request = paramiko.Message()
    request.add_byte(cMSG_CHANNEL_REQUEST)
    request.add_int(channel)
    request.add_string("exec")
    request.add_boolean(True)
    request.add_string(program)
    return request


def _within_window(feed: Callable[..., None]) -> Callable[..., None]:
    """A handler that stores data of a channel, but raises SSHException, which ends the connection, if a server sends
    more than its window allows. paramiko would store all of it."""

    def checked(channel: Any, message: Any) -> None:
        if len(channel.in_buffer) + len(channel.in_stderr_buffer) > MOST_UNREAD:
            raise paramiko.SSHException("more data than the window of the channel allows")
        feed(channel, message)

    return checked


Login._channel_handler_table = {
    **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
    **{
        kind: _within_window(paramiko.Transport._channel_handler_table[kind])  # type: ignore[attr-defined]
        for kind in (MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA)
    },
}


class _Patient(threading.Event):
    """An event that paramiko sets also at the end of the connection, so that it need not look ten times a second."""

    def wait(self, timeout: float | None = None) -> bool:
        """As of any event, but for at least _LOOK_S."""
        return super().wait(None if timeout is None else max(timeout, _LOOK_S))


class PipelinedAuth(AuthHandler):
    """Sends the authentication request directly after the service request, without waiting for the answer."""

    def _request_auth(self) -> None:
        super()._request_auth()  # type: ignore[misc]
        accepted = paramiko.Message()
        accepted.add_string("ssh-userauth")
        accepted.rewind()
        super()._parse_service_accept(accepted)  # type: ignore[misc]

    def _parse_service_accept(self, m: paramiko.Message) -> None:
        """Ignores the message, because the authentication request was already sent."""


class _Opening:
    """A request for a channel and for a program on it, which are sent together without waiting for an answer."""

    def __init__(self, transport: Any, program: str) -> None:
        self.program = program
        self._transport = transport
        window, packet = transport.default_window_size, transport.default_max_packet_size
        with transport.lock:
            number = transport._next_channel()
            self._channel = paramiko.Channel(number)
            transport._channels.put(number, self._channel)
            self._answered = transport.channel_events[number] = threading.Event()
            transport.channels_seen[number] = True
            self._channel._set_transport(transport)  # type: ignore[attr-defined]
            self._channel._set_window(window, packet)  # type: ignore[attr-defined]
        request = paramiko.Message()
        request.add_byte(cMSG_CHANNEL_OPEN)
        request.add_string("session")
        for value in (number, window, packet):
            request.add_int(value)
        transport._send_user_message(request)
        transport._send_user_message(exec_request(0, program))

    def channel(self, timeout_s: float) -> paramiko.Channel | None:
        """The open channel; None if it was refused or did not open within `timeout_s` seconds."""
        until = time.monotonic() + timeout_s
        while not self._answered.wait(max(0.0, min(_LOOK_S, until - time.monotonic()))):
            if not self._transport.active or time.monotonic() >= until:
                return None
        opened: paramiko.Channel | None = self._transport._channels.get(self._channel.chanid)
        return opened
