"""An open connection to a host, and its channels."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import paramiko

from rigwright.errors import Unreachable
from rigwright.hosts import Host
from rigwright.login import asked_for

AHEAD_S = 5.0
"""How long a channel that was asked for with the login is waited for, once that is through: their answers come together (assumed)."""


class Session:
    """An open, verified, authenticated connection."""

    def __init__(self, host: Host, connection: Any, abort: Any) -> None:
        self.host = host
        self.connection = connection
        self.user: str = connection.user
        self._abort = abort
        self._first: list[tuple[paramiko.Channel, str]] = []

    def open_first(self, deadline: float) -> None:
        """The first channel is open; sshd takes longest over that one. Raises Unreachable, and SSHException as Login does."""
        login = self.connection.client.get_transport()
        wait_s = max(1.0, min(AHEAD_S, deadline - time.monotonic()))
        self._first = [login.first_channel(wait_s) or (self._open(deadline), "")]

    @contextlib.contextmanager
    def channel(self, deadline: float, program: str) -> Iterator[paramiko.Channel]:
        """A fresh channel, closed afterwards, on which a program was asked for ("" for none). Raises Unreachable when none can be
        opened in time.

        What is sent next reaches the program: one round trip less than `exec_command`, which waits for a yes. A no closes the channel.
        """
        channel, runs = self._first.pop() if self._first else (self._open(deadline), "")
        if runs not in ("", program):
            channel.close()
            channel, runs = self._open(deadline), ""
        try:
            if program and not runs:
                self.connection.client.get_transport()._send_user_message(asked_for(channel.remote_chanid, program))
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
            raise Unreachable(
                self.host.name, f"the connection was lost ({error})", "", "run the same command again"
            ) from None

    def close(self) -> None:
        """The connection and its gateways are closed, without waiting for a far end that does not answer."""
        with contextlib.suppress(Exception):
            self.connection.close()
        self._abort()
