"""The packets of a connection, with fewer system calls and threads than paramiko's: a read takes what has come, and packets can be sent together."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator
from typing import Any

import paramiko
from paramiko.packet import Packetizer

from rigwright.core import deadlines

LONGEST_PACKET = 1 << 20
"""Bytes. RFC 4253 asks for 35000; OpenSSH sends up to 256 KiB."""
_READ_BYTES = 1 << 16


class Packets(Packetizer):
    """Reads and writes the packets of a socket, as paramiko's class does; encryption and checks are paramiko's."""

    _Packetizer__remainder: bytes
    _Packetizer__timer: Any

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self._sock = sock
        self._unread = b""
        """What has come and was not asked for yet, as it came."""
        self._held: list[bytes] | None = None
        """What is not sent yet; None: everything is sent at once."""
        self._writing = threading.RLock()

    def start_handshake(self, timeout: float) -> None:
        """As paramiko's method, without a thread."""
        if not self._Packetizer__timer:
            self._Packetizer__timer = deadlines.after(timeout, self.read_timer)

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        """As paramiko's method. Raises SSHException for a packet that is too long, which paramiko would collect, up to 4 GiB of it."""
        if n > LONGEST_PACKET:
            raise paramiko.SSHException(f"a packet of more than {LONGEST_PACKET >> 10} KiB")
        if self._Packetizer__remainder:  # what came with the version of the server
            self._unread, self._Packetizer__remainder = self._Packetizer__remainder + self._unread, b""
        while len(self._unread) < n:
            if self.handshake_timed_out():
                raise EOFError
            if not (came := self._received()):
                if check_rekey and not self._unread and self.need_rekey():
                    raise paramiko.packet.NeedRekeyException
                self._check_keepalive()  # type: ignore[attr-defined]
            self._unread += came
        read, self._unread = self._unread[:n], self._unread[n:]
        return read

    def _received(self) -> bytes:
        """What has come; b"" after a while without anything. Raises EOFError at the end of the connection, and OSError."""
        try:
            came: bytes = self._sock.recv(_READ_BYTES)
        except OSError as error:  # TimeoutError is one
            if self.closed:
                raise EOFError from None
            if isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
                return b""
            raise
        if not came:
            raise EOFError
        return came

    def write_all(self, out: bytes) -> None:  # type: ignore[override]
        """As paramiko's method; inside `together` at its end."""
        with self._writing:
            if self._held is not None:
                self._held.append(out)
            else:
                super().write_all(out)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Sends what is written inside it with one system call at its end. Nothing inside it may wait for the server."""
        with self._writing:
            before, self._held = self._held, self._held or []
        try:
            yield
        finally:
            with self._writing:
                held, self._held = self._held, before
                if before is None and held:
                    super().write_all(b"".join(held))
