"""The socket between a run and the keeper of connections: its place, who may be on the other side, and its frames.

A frame is a byte for its kind, its size in four bytes, and its content. The first frame of a connection is a request (JSON). Imports
nothing heavy, because a run with a kept connection begins with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import socket
import stat
import struct
import threading
import time
from pathlib import Path
from typing import Any

import rigwright
from rigwright.core import state_dir
from rigwright.core.errors import RigwrightError

PROTOCOL = 1
ENVIRONMENT = (
    "HOME",
    "LNAME",
    "LOGNAME",
    "PATH",
    "SSH_AUTH_SOCK",
    "USER",
    "USERNAME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
)
"""The environment variables on which a way to a host can depend. The keeper has no others."""
REQUEST, ANSWER, INPUT, PROGRAM, OUTPUT, ERRORS, ENDED = (bytes([letter]) for letter in b"RAIPOEX")
"""The kinds of frames: a request and its answer; of a channel the input, a program to run, stdout, stderr, and its end."""
MOST_FRAME = 1 << 17
"""Bytes of the content of a frame."""
LONGEST_S = 24 * 3600.0
"""The longest time to keep a connection for after its last use."""
_HEADER = struct.Struct(">cI")
_REST_S = 10.0
"""So long a frame may take that has begun."""
_SEND_S = 60
"""So long the other side may read nothing."""
_LONGEST_PATH = 100
"""Bytes of the path of a socket; Linux takes 107."""
SUPPORTED = hasattr(socket, "SO_PEERCRED")
"""Whether this system says who is on the other side of a socket. Linux does."""


def folder(make: bool = False) -> Path | None:
    """The private folder of the sockets; None when there is none that this user alone can write.

    It is in XDG_RUNTIME_DIR, or in the state directory. `make`: it is created where it is missing.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with contextlib.suppress(OSError, RigwrightError):
        private = runtime.startswith("/") and _is_private(Path(runtime))
        path = Path(runtime, "rigwright") if private else state_dir.place("kept")
        if make:
            state_dir.made(path)
        if _is_private(path) and len(os.fsencode(path / _name())) < _LONGEST_PATH:
            return path
    return None


def _is_private(path: Path) -> bool:
    about = os.lstat(path)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077


def _name() -> str:
    """The name of the socket: another one for another release, installation, environment, or namespace of files or networks.

    So each of these has a keeper of its own, and two releases never talk to each other.
    """
    spaces = []
    for space in ("mnt", "net", "user"):
        with contextlib.suppress(OSError):
            spaces.append(os.readlink(f"/proc/self/ns/{space}"))
    variables = {name: os.environ.get(name) for name in ENVIRONMENT}
    kind = [PROTOCOL, rigwright.__version__, rigwright.__file__, variables, spaces]
    return hashlib.sha256(json.dumps(kind).encode("utf-8", "surrogateescape")).hexdigest()[:20] + ".sock"


def place(make: bool = False) -> Path | None:
    """The path of the socket of this release and environment; None without a private folder."""
    where = folder(make)
    return where / _name() if where else None


def of_mine(connection: socket.socket) -> bool:
    """Whether a process of this user is on the other side."""
    return _peer_uid(connection) == os.geteuid()


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def connected(path: Path | None) -> Wire | None:
    """A connection to the keeper that listens on a path; None when no process of this user does."""
    if path is None or not SUPPORTED:
        return None
    connection = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        about = os.lstat(path)
        connection.setblocking(False)  # a listener that accepts nothing must not hold up a run
        if stat.S_ISSOCK(about.st_mode) and about.st_uid == os.geteuid():
            connection.connect(str(path))
            if of_mine(connection):
                return Wire(connection)
    connection.close()
    return None


class Wire:
    """Sends and receives frames. One thread may receive while others send. `shut` ends both from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        self._socket = connection
        self._unread = bytearray()
        self._sending = threading.Lock()

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Sends content in as many frames as it needs. Raises OSError when the other side is gone or does not read."""
        with self._sending:
            for start in range(0, max(1, len(content)), MOST_FRAME):
                part = content[start : start + MOST_FRAME]
                self._socket.sendall(_HEADER.pack(kind, len(part)) + part)

    def receive(self, wait_s: float | None) -> tuple[bytes, bytes]:
        """The kind and content of the next frame, which must be there within `wait_s` seconds (None: begin at any time).

        Raises EOFError when the other side has closed, TimeoutError, and OSError, also for a frame that is too long.
        """
        deadline = None if wait_s is None else time.monotonic() + wait_s
        while True:
            if len(self._unread) >= _HEADER.size:
                kind, size = _HEADER.unpack_from(self._unread)
                if size > MOST_FRAME:
                    raise ConnectionError("a frame is too long")
                if len(self._unread) >= _HEADER.size + size:
                    content = bytes(self._unread[_HEADER.size : _HEADER.size + size])
                    del self._unread[: _HEADER.size + size]
                    return kind, content
            if self._unread and deadline is None:
                deadline = time.monotonic() + _REST_S
            self._fill(deadline)

    def _fill(self, deadline: float | None) -> None:
        left_ms = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
        if self._socket.fileno() < 0:
            raise EOFError("the connection is closed")
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(left_ms):
            raise TimeoutError("no answer in time")
        received = self._socket.recv(2 * MOST_FRAME)
        if not received:
            raise EOFError("the other side has closed")
        self._unread += received

    @property
    def has_unread(self) -> bool:
        """Whether bytes have come that were not returned yet."""
        if self._unread:
            return True
        if self._socket.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def ask(self, request: dict[str, Any], wait_s: float) -> dict[str, Any]:
        """The answer to a request. Raises OSError, EOFError, and ValueError for what is no answer."""
        self.send(REQUEST, json.dumps(request).encode())
        kind, content = self.receive(wait_s)
        return document(content) if kind == ANSWER else {}

    def shut(self) -> None:
        """Ends the connection; a thread that waits in `receive` gets EOFError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection and closes the socket."""
        self.shut()
        self._socket.close()


def document(content: bytes) -> dict[str, Any]:
    """The JSON object of a frame. Raises ValueError for anything else."""
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found
