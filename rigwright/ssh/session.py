"""An open connection to a host, and its channels."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import paramiko

from rigwright.inventory.model import Host
from rigwright.ssh.channel_io import lost
from rigwright.ssh.pipelined_login import exec_request

EARLY_CHANNEL_S = 5.0
"""Seconds to wait after the login for a channel that was requested with it; both answers normally arrive together
(assumed)."""


class Session:
    """An open, verified, authenticated connection."""

    errors: tuple[type[BaseException], ...] = (OSError, EOFError, paramiko.SSHException)
    """What its channels raise when it is lost."""

    def __init__(self, host: Host, connection: Any, abort: Any) -> None:
        self.host = host
        self.connection = connection
        self.user: str = connection.user
        self.legacy: list[str] = []
        """The old algorithms that it uses."""
        self.accepted_key = ""
        """The public key of the login (`Identities.accepted`)."""
        self._abort = abort
        self._first: list[tuple[paramiko.Channel, str]] = []

    def open_first(self, deadline: float) -> None:
        """Opens the first channel, which takes sshd longer than later ones. Raises Unreachable if it does not open, and
        SSHException as `Login.first_channel`."""
        login = self.connection.client.get_transport()
        wait_s = max(1.0, min(EARLY_CHANNEL_S, deadline - time.monotonic()))
        self._first = [login.first_channel(wait_s) or (self._open(deadline), "")]

    @contextlib.contextmanager
    def channel(self, deadline: float, program: str) -> Iterator[paramiko.Channel]:
        """Opens a channel, requests a program on it ("" for none), and closes it at the end.

        Unlike `exec_command` it does not wait for the server's answer to the request, which saves a round trip. The
        server closes the channel if it refuses the request. Raises Unreachable if no channel opens in time.
        """
        try:
            channel, runs = self._first.pop()
        except IndexError:
            channel, runs = self._open(deadline), ""
        if runs not in ("", program):
            channel.close()
            channel, runs = self._open(deadline), ""
        try:
            if program and not runs:
                self.connection.client.get_transport()._send_user_message(exec_request(channel.remote_chanid, program))
            yield channel
        finally:
            channel.close()

    def _open(self, deadline: float) -> paramiko.Channel:
        transport = self.connection.client.get_transport()
        try:
            if transport is None or not transport.is_active():
                raise EOFError("the connection is closed")
            wait_s = max(1.0, min(30.0, deadline - time.monotonic()))
            channel: paramiko.Channel = transport.open_session(timeout=wait_s)
            return channel
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise lost(self.host, error) from None

    def close(self) -> None:
        """Closes the connection and its gateways without waiting for the host."""
        self._abort()  # first, because it ends the reading of paramiko's thread
        with contextlib.suppress(Exception):
            self.connection.close()
