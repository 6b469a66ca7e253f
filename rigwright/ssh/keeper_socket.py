"""The socket between a run and a process of the same user that serves it: its place, who may be on the other side, and its frames.

Such processes are the keeper of connections (`rigwright.ssh.keeper`) and the prepared process (`rigwright.cli.prepared`).

A frame is a byte for its kind, its size in four bytes, and its content. The first frame of a connection is a request (JSON). Imports
nothing heavy, because a run with a kept connection begins with it.
"""

from __future__ import annotations

import contextlib
import fcntl
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

PROTOCOL = 1
ENVIRONMENT = (
    "HOME",
    "LNAME",
    "LOGNAME",
    "PATH",
    "SSH_AUTH_SOCK",
    "SUDO_USER",
    "USER",
    "USERNAME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
)
"""The environment variables on which a way to a host can depend. The keeper has no others."""
REQUEST, ANSWER, INPUT, PROGRAM, OUTPUT, ERRORS, ENDED = (bytes([letter]) for letter in b"RAIPOEX")
"""The kinds of frames: a request and its answer; of a channel the input, a program to run, stdout, stderr, and its end."""
MOST_FRAME = 1 << 20
"""Bytes of the content of a frame."""
BLOCK = 1 << 17
"""Bytes that are read at a time."""
LONGEST_S = 24 * 3600.0
"""The longest time to keep a connection for after its last use."""
_HEADER = struct.Struct(">cI")
_REST_S = 10.0
"""So long a frame may take that has begun."""
_SEND_S = 60
"""So long the other side may read nothing."""
_NAME_BYTES = 25
_LONGEST_PATH = 100
"""Bytes of the path of a socket; Linux takes 107."""
SUPPORTED = hasattr(socket, "SO_PEERCRED")
"""Whether this system says who is on the other side of a socket. Linux does."""


def folder(make: bool = False) -> Path | None:
    """The private folder of the sockets; None when there is none that this user alone can write.

    It is in XDG_RUNTIME_DIR, or in the state directory. `make`: it is created where it is missing.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with contextlib.suppress(OSError):
        private = runtime.startswith("/") and _is_private(Path(runtime))
        path = Path(runtime, "rigwright") if private else _in_state_dir()
        if path is None:
            return None
        if make and private:
            path.mkdir(mode=0o700, exist_ok=True)
        elif make:
            _make_in_state_dir(path)
        if _is_private(path) and len(os.fsencode(path)) + 1 + _NAME_BYTES < _LONGEST_PATH:
            return path
    return None


def _in_state_dir() -> Path | None:
    """The folder in the state directory: another one for root and for the user who called sudo, who share that directory."""
    from rigwright.core import state_dir
    from rigwright.core.errors import UsageError

    with contextlib.suppress(UsageError):
        return state_dir.place(f"kept-{os.geteuid()}")
    return None


def _make_in_state_dir(path: Path) -> None:
    from rigwright.core import state_dir

    state_dir.give(*[made for made in state_dir.made(path) if made != path])


def _is_private(path: Path) -> bool:
    about = os.lstat(path)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077


def place(make: bool = False, *kind: Any) -> Path | None:
    """The path of the socket of a kind of process; None without a private folder.

    It is another one for another release, installation, environment, or namespace of files or networks. So each of these has processes
    of its own, and two releases never talk to each other.
    """
    where = folder(make)
    if where is None:
        return None
    spaces = []
    for space in ("mnt", "net", "user"):
        with contextlib.suppress(OSError):
            spaces.append(os.readlink(f"/proc/self/ns/{space}"))
    variables = {name: os.environ.get(name) for name in ENVIRONMENT}
    whole = json.dumps([PROTOCOL, rigwright.__version__, rigwright.__file__, variables, spaces, *kind])
    name = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:20]
    return where / f"{name}.sock"


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
        received = self._socket.recv(BLOCK)
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

    def send_files(self, *files: int) -> None:
        """Sends open files, before the first frame. Raises OSError, also for one that is closed."""
        socket.send_fds(self._socket, [b"F"], list(files))

    def receive_files(self, count: int, wait_s: float) -> list[int]:
        """The numbers of the files that come before the first frame. Raises OSError, EOFError, TimeoutError, and ValueError without them."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(wait_s * 1000):
            raise TimeoutError("no files in time")
        byte, files, _, _ = socket.recv_fds(self._socket, 1, count)
        if byte == b"F" and len(files) == count:
            return files
        for file in files:
            os.close(file)
        self._unread += byte
        return []

    def ask(self, request: dict[str, Any], wait_s: float) -> dict[str, Any]:
        """The answer to a request. Raises OSError, EOFError, and ValueError for what is no answer."""
        self.send(REQUEST, json.dumps(request).encode())
        kind, content = self.receive(wait_s)
        return document(content) if kind == ANSWER else {}

    def shut(self) -> None:
        """Ends the connection; a thread that waits in `receive` gets EOFError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Closes the socket in a fork, where the connection goes on in another process."""
        self._socket.close()

    def close(self) -> None:
        """Ends the connection and closes the socket."""
        self.shut()
        self._socket.close()


class Listening:
    """A socket that listens on a path, of one process at a time."""

    def __init__(self, path: Path, opened: socket.socket, lock: int) -> None:
        self.socket = opened
        self._path = path
        self._lock = lock

    @classmethod
    def on(cls, path: Path) -> Listening | None:
        """Listens on a path; None when another process does. Replaces what a process left that was killed. Raises OSError."""
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        path.unlink(missing_ok=True)
        opened = socket.socket(socket.AF_UNIX)
        opened.bind(str(path))  # in a private folder
        opened.listen(64)
        return cls(path, opened, lock)

    def end(self) -> None:
        """Ends listening, and removes the socket's file."""
        self._path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Closes the socket in a fork; the process that listens goes on."""
        self.socket.close()
        os.close(self._lock)


def now() -> float:
    """Seconds that go on while this machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def document(content: bytes) -> dict[str, Any]:
    """The JSON object of a frame. Raises ValueError for anything else."""
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found
