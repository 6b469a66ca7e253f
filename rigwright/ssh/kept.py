"""Connections that were kept by an earlier run: asks the keeper (`rigwright.ssh.keeper`) for one, runs programs over it, has new ones kept.

A run only reads over a kept connection, and makes one of its own where that fails. Imports nothing heavy: a run with a kept connection
does without paramiko.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rigwright.core import detached_process
from rigwright.core.errors import UsageError
from rigwright.inventory.model import CONNECTION, Host
from rigwright.ssh import keeper_socket
from rigwright.ssh.channel_io import lost
from rigwright.ssh.keeper_socket import ANSWER, ENDED, ERRORS, INPUT, OUTPUT, PROGRAM, Wire

WAIT_S = 2.0
"""So long a run waits for the keeper before it makes a connection of its own. The keeper asks the host whether it is still there."""
MOST_UNREAD = 1 << 22
"""Bytes of a channel that were not read yet, as many as of a connection without the keeper."""
_MOST_REQUEST = 1 << 15
"""Bytes; less than a pipe holds, so that nobody waits for the keeper."""
_UNITS = {"s": 1, "m": 60, "h": 3600}
TITLE = "(keeps ssh connections)"
"""The last word of the keeper's command line; `scripts/bench` finds it by this."""
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from rigwright.ssh import keeper; keeper.main()"


def duration_s(text: str) -> float | None:
    """The seconds of --keep: None when it is "", 0 for none. Raises UsageError for any other text than `10m`, `90s`, `1h` or `0`."""
    if not text:
        return None
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    seconds = int(number) * _UNITS[unit] if number.isascii() and number.isdigit() and len(number) < 7 else -1
    if not 0 <= seconds <= keeper_socket.LONGEST_S:
        found, expected = (
            f"'{text[:80]}' is no time to keep connections for",
            "10m, 90s, 1h, at most 24h; 0 closes them",
        )
        raise UsageError("--keep", found, expected, "--keep 10m")
    if seconds and not keeper_socket.SUPPORTED:
        found = f"this system ({sys.platform}) does not say which user is on the other side of a socket"
        raise UsageError("--keep", found, "Linux", "the same command without --keep")
    return float(seconds)


def exists() -> bool:
    """Whether connections may be kept now by a process of this release and environment."""
    place = keeper_socket.place()
    return place is not None and place.exists()


def session(host: Host, keep_s: float) -> KeptSession | None:
    """A session over the kept connection of a host; None when there is none that a new one would equal.

    The keeper compares host keys, known_hosts, ssh_config and keys anew, and asks the host whether it is there. The connection is kept
    for `keep_s` seconds after the last run that uses it.
    """
    named = _named(host)
    wire = keeper_socket.connected(keeper_socket.place()) if named else None
    if named is None or wire is None:
        return None
    with contextlib.suppress(OSError, EOFError, ValueError):
        answer = wire.ask({"do": "use", "keep_s": keep_s, **named}, WAIT_S)
        token, user, legacy = (answer.get(name) for name in ("token", "user", "legacy"))
        if isinstance(token, str) and isinstance(user, str) and isinstance(legacy, list):
            return KeptSession(host, wire, token, user, [str(name) for name in legacy])
    wire.close()
    return None


def drop(host: Host) -> None:
    """Has the kept connections of a host closed once no run uses them: what a login gets may be another now.

    Also those that were kept by another release or in another environment.
    """
    named, where = _named(host), keeper_socket.folder()
    for place in sorted(where.glob("*.sock")) if named and where else ():
        _told(place, {"do": "drop", **(named or {})})


def order(hosts: Sequence[tuple[Host, str]], keep_s: float) -> None:
    """Has connections made and kept for `keep_s` seconds. Starts the keeper where there is none, and waits for nothing.

    Each host is given with the decision (`route.decision`) by which this run has logged in; the keeper must come to the same one.
    """
    orders = [{**named, "decision": decision} for host, decision in hosts if (named := _named(host))]
    request = {"do": "keep", "keep_s": keep_s, "orders": orders}
    while orders and len(json.dumps(request)) > _MOST_REQUEST:
        orders.pop()
    place = keeper_socket.place(make=True) if orders else None
    if place is None or _told(place, request):
        return
    environment = {name: os.environ[name] for name in keeper_socket.ENVIRONMENT if name in os.environ}
    detached_process.start(_BOOT, TITLE, json.dumps(request).encode(), environment)


def close_all() -> list[str]:
    """Closes all kept connections of this user, also those of other releases; returns the names of their hosts."""
    names: list[str] = []
    where = keeper_socket.folder()
    for place in sorted(where.glob("*.sock")) if where else ():
        wire = keeper_socket.connected(place)
        if wire is None:
            continue
        with contextlib.suppress(OSError, EOFError, ValueError):
            names += map(str, wire.ask({"do": "close"}, WAIT_S).get("hosts", ()))
        wire.close()
    return sorted(names)


def _told(place: Path, request: dict[str, Any]) -> bool:
    """Whether the keeper that listens on a path has taken a request."""
    wire = keeper_socket.connected(place)
    if wire is None:
        return False
    with contextlib.suppress(OSError, EOFError, ValueError), contextlib.closing(wire):
        return bool(wire.ask(request, WAIT_S).get("ok"))
    return False


def _named(host: Host) -> dict[str, Any] | None:
    """How a host is named to the keeper; None for one whose connection is not kept.

    That is one with a secret among its connection variables, or with a file that is relative to the current folder.
    """
    variables = {name: host.variables[name] for name in CONNECTION if name in host.variables}
    files = (host.connection("ansible_ssh_private_key_file"), host.connection("ssh_known_hosts"))
    relative = any(path not in (None, "") and not str(path).startswith(("/", "~")) for path in files)
    if host.secret or relative or host.is_this_machine or not _is_plain(variables):
        return None
    return {"name": host.name, "variables": variables}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(one) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or type(value) in (str, int, float, bool)


class KeptSession:
    """A session over a connection that the keeper holds, which it does as long as this session is open."""

    errors: tuple[type[BaseException], ...] = (OSError, EOFError)

    def __init__(self, host: Host, wire: Wire, token: str, user: str, legacy: list[str]) -> None:
        self.host = host
        self.user = user
        self.legacy = legacy
        self._wire = wire
        self._token = token
        self._channels: list[KeptChannel] = []
        self._closed = False

    @contextlib.contextmanager
    def channel(self, deadline: float, program: str) -> Iterator[KeptChannel]:
        """Opens a channel, requests a program on it ("" for none), and closes it at the end. Raises Unreachable."""
        channel = self._open(deadline, program)
        self._channels.append(channel)
        try:
            if self._closed:  # by another thread, which did not see this channel
                raise lost(self.host, "the connection is closed")
            yield channel
        finally:
            self._channels.remove(channel)
            channel.close()

    def _open(self, deadline: float, program: str) -> KeptChannel:
        wire = keeper_socket.connected(keeper_socket.place())
        if wire is None:
            raise lost(self.host, "the process that keeps it has ended")
        try:
            wait_s = max(1.0, min(30.0, deadline - time.monotonic()))
            if wire.ask({"do": "channel", "token": self._token, "program": program}, wait_s).get("ok"):
                return KeptChannel(wire)
            raise EOFError("the connection is closed")
        except (OSError, EOFError, ValueError) as error:
            wire.close()
            raise lost(self.host, error) from None

    def close(self) -> None:
        """Gives the connection back to the keeper, from any thread. A channel that another one is opening ends too."""
        self._closed = True
        for channel in tuple(self._channels):
            channel.shut()
        self._wire.close()


class KeptChannel:
    """A channel of a kept connection, with those methods of paramiko's channels that this package uses."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._out, self._err = bytearray(), bytearray()
        self._limit_s: float | None = None
        self.closed = False
        """Whether the program has ended, or the connection."""

    def settimeout(self, limit_s: float | None) -> None:
        """Limits each of the following waits, in seconds."""
        self._limit_s = limit_s

    def exec_command(self, program: str) -> None:
        """Requests a program on a channel that was opened without one."""
        self._wire.send(PROGRAM, program.encode())

    def sendall(self, data: bytes) -> None:
        """Sends data to the stdin of the program. Raises OSError."""
        self._wire.send(INPUT, data)

    def recv(self, size: int) -> bytes:
        """Waits for stdout; returns at most `size` bytes of it, b"" at its end. Raises OSError, TimeoutError."""
        deadline = None if self._limit_s is None else time.monotonic() + self._limit_s
        while not self._out and not self.closed:
            self._take(None if deadline is None else deadline - time.monotonic())
        return _taken(self._out, size)

    def recv_stderr(self, size: int) -> bytes:
        """At most `size` bytes of the stderr that has come."""
        return _taken(self._err, size)

    def recv_ready(self) -> bool:
        """Whether there is stdout to receive."""
        self._take_all()
        return bool(self._out)

    def recv_stderr_ready(self) -> bool:
        """Whether there is stderr to receive."""
        self._take_all()
        return bool(self._err)

    def exit_status_ready(self) -> bool:
        """Whether the program has ended."""
        self._take_all()
        return self.closed

    def _take_all(self) -> None:
        while not self.closed and len(self._out) + len(self._err) <= MOST_UNREAD and self._wire.has_unread:
            self._take(10.0)

    def _take(self, wait_s: float | None) -> None:
        if len(self._out) + len(self._err) > MOST_UNREAD:
            raise ConnectionError("more data than the window of the channel allows")
        kind, content = self._wire.receive(wait_s)
        if kind == OUTPUT:
            self._out += content
        elif kind == ERRORS:
            self._err += content
        elif kind == ENDED:
            self.closed = True
        elif kind != ANSWER:
            raise ConnectionError("a frame of an unknown kind")

    def shut(self) -> None:
        """Ends the channel from any thread; one that waits gets an error."""
        self._wire.shut()

    def close(self) -> None:
        """Ends the channel; what its program does is not waited for."""
        self.closed = True
        self._wire.close()


def _taken(buffer: bytearray, size: int) -> bytes:
    data = bytes(buffer[:size])
    del buffer[:size]
    return data
