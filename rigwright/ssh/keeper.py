"""The keeper: a process that keeps verified, logged-in connections of its user for later runs, for the time of --keep.

A run starts it (`rigwright.ssh.kept.order`) and asks it over a socket that only this user can reach. It makes each connection as a run
does, and before each use compares everything anew that a login depends on. It has no secrets: passwords of sudo pass through it
as the input of a program. It ends with its last connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import secrets
import select
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from rigwright.core.errors import RigwrightError
from rigwright.inventory.model import Host
from rigwright.ssh import keeper_socket
from rigwright.ssh.keeper_socket import ANSWER, ENDED, ERRORS, INPUT, OUTPUT, PROGRAM, REQUEST, Listening, Wire, now

if TYPE_CHECKING:
    from rigwright.ssh.session import Session

REQUEST_S = 5.0
"""So long a request may take to arrive."""
LOGIN_S = 20.0
LIFE_S = 1.0
"""So long the host may take to show that it is there."""
MOST_CLIENTS = 512
MOST_KEPT = 128
MOST_USERS = 4
"""Runs that use a connection at the same time; sshd allows 10 channels of one (MaxSessions)."""
_SWEEP_S = 15.0
_LAST_ANSWERS_S = 1.0
"""So long the last answers may take when nothing is kept any more."""
_PR_SET_DUMPABLE = 4


class _Kept:
    """A connection that is kept, and the runs that use it, by token. `until`: on the clock of `now`."""

    def __init__(self, session: Session, keep_s: float) -> None:
        self.session = session
        self.keep_s = keep_s
        self.until = now() + keep_s
        self.dropped = False
        """Whether no other run may use it."""
        self.users: set[str] = set()
        self.asking = threading.Lock()

    def close_if_unused(self) -> None:
        if self.dropped and not self.users:
            self.session.close()


class Keeper:
    """The connections that are kept, by their names; and the requests of runs, each answered in a thread."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._opening: set[str] = set()
        self._clients = 0
        self._lock = threading.Lock()
        self._awake, self._wake = socket.socketpair()
        self._wake.setblocking(False)

    def serve(self, listening: socket.socket) -> None:
        """Answers requests until nothing is kept any more, and nothing is about to be."""
        listening.setblocking(False)
        poll = select.poll()
        poll.register(listening, select.POLLIN)
        poll.register(self._awake, select.POLLIN)
        while self._sweep():
            ready = [number for number, _ in poll.poll(min(_SWEEP_S, self._next_s()) * 1000)]
            if self._awake.fileno() in ready:
                self._awake.recv(4096)
            if listening.fileno() in ready:
                with contextlib.suppress(OSError):
                    self._begin(listening.accept()[0])
        until = now() + _LAST_ANSWERS_S
        while self._clients and now() < until:
            time.sleep(0.02)

    def keep(self, request: dict[str, Any]) -> None:
        """Begins to make the connections of a request."""
        keep_s = _seconds(request)
        for order in request["orders"]:
            host, name, decision = _host(order), _name(order), str(order["decision"])
            with self._lock:
                if name in self._opening or len(self._kept) + len(self._opening) >= MOST_KEPT:
                    continue
                self._opening.add(name)
            threading.Thread(target=self._open, args=(host, name, decision, keep_s), daemon=True).start()

    def close(self) -> list[str]:
        """Closes all connections, also those in use; returns the names of their hosts."""
        with self._lock:
            kept = list(self._kept.values())
            self._kept.clear()
        for one in kept:
            one.dropped = True
            one.session.close()
        self._look_again()
        return [one.session.host.name for one in kept]

    def _look_again(self) -> None:
        """Makes `serve` look what is left to wait for."""
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b".")

    def _sweep(self) -> bool:
        """Closes the connections whose time is over; returns whether there is still something to do."""
        with self._lock:
            for name, one in list(self._kept.items()):
                if not one.users and (one.until <= now() or not _is_open(one.session)):
                    self._drop(name)
            return bool(self._kept or self._opening)

    def _next_s(self) -> float:
        with self._lock:
            return max(0.05, min((one.until - now() for one in self._kept.values() if not one.users), default=_SWEEP_S))

    def _drop(self, name: str) -> None:
        """Lets no further run use a connection. The caller has the lock."""
        if one := self._kept.pop(name, None):
            one.dropped = True
            one.close_if_unused()
            self._look_again()

    def _open(self, host: Host, name: str, decision: str, keep_s: float) -> None:
        """Makes a connection and keeps it, where this process comes to the same decision as the run that asks for it."""
        from rigwright.ssh import connect

        session = None
        try:
            with self._lock:
                known = self._kept.get(name)
            if known and self._is_right(known):
                known.keep_s, known.until = keep_s, now() + keep_s
                return
            with contextlib.suppress(Exception):
                session = connect.verified(host, LOGIN_S, lambda _abort: None)
        finally:
            with self._lock:
                self._opening.discard(name)
                if session and session.decision == decision:
                    self._drop(name)
                    self._kept[name] = _Kept(session, keep_s)
                    session = None
            self._look_again()
            if session:
                session.close()

    @staticmethod
    def _is_right(one: _Kept) -> bool:
        """Whether a new login would be made alike and accept the same host keys, and the host answers."""
        from rigwright.ssh import connect

        with one.asking, contextlib.suppress(RigwrightError, OSError):
            return connect.still_verified(one.session) and one.session.answers(LIFE_S)
        return False

    def _begin(self, connection: socket.socket) -> None:
        """Answers the requests of a client in a thread; closes one of another user, or one too many."""
        with self._lock:
            welcome = self._clients < MOST_CLIENTS and keeper_socket.of_mine(connection)
            self._clients += welcome
        if not welcome:
            connection.close()
            return
        threading.Thread(target=self._answer, args=(Wire(connection),), daemon=True).start()

    def _answer(self, wire: Wire) -> None:
        try:
            with contextlib.suppress(OSError, EOFError, ValueError, TypeError, KeyError, RigwrightError):
                kind, content = wire.receive(REQUEST_S)
                if kind != REQUEST:
                    raise ValueError("no request")
                self._do(wire, keeper_socket.document(content))
        finally:
            wire.close()
            with self._lock:
                self._clients -= 1

    def _do(self, wire: Wire, request: dict[str, Any]) -> None:
        what = request["do"]
        if what == "use":
            self._use(wire, request)
        elif what == "channel":
            self._channel(wire, request)
        elif what == "keep":
            self.keep(request)
            _say(wire, {"ok": True})
        elif what == "drop":
            with self._lock:
                self._drop(_name(request))
            _say(wire, {"ok": True})
        elif what == "close":
            _say(wire, {"hosts": self.close()})

    def _use(self, wire: Wire, request: dict[str, Any]) -> None:
        """Gives a connection to a run until the run closes its end; says that there is none, where none equals a new one."""
        name, keep_s, token = _name(request), _seconds(request), secrets.token_hex(16)
        with self._lock:
            one = self._kept.get(name)
            if one is None or len(one.users) >= MOST_USERS:
                one = None
            else:
                one.users.add(token)
        if one is None:
            _say(wire, {})
            return
        try:
            if not self._is_right(one):
                with self._lock:
                    if self._kept.get(name) is one:
                        self._drop(name)
                _say(wire, {})
                return
            one.keep_s = keep_s
            _say(wire, {"token": token, "user": one.session.user, "legacy": one.session.legacy})
            with contextlib.suppress(OSError, EOFError):
                wire.receive(None)
        finally:
            with self._lock:
                one.users.discard(token)
                one.until = now() + one.keep_s
                one.close_if_unused()
            self._look_again()
            if not one.dropped:
                with contextlib.suppress(RigwrightError):
                    one.session.open_next(time.monotonic() + LOGIN_S)

    def _channel(self, wire: Wire, request: dict[str, Any]) -> None:
        """Runs a program on a channel for a run that uses the connection, until one of them ends it."""
        token, program = str(request["token"]), str(request["program"])
        with self._lock:
            # A connection that was dropped meanwhile is not in the table any more; its run makes one of its own.
            one = next((each for each in self._kept.values() if token in each.users), None)
        if one is None:
            _say(wire, {})
            return
        with one.session.channel(time.monotonic() + LOGIN_S, program) as channel:
            _say(wire, {"ok": True})
            threading.Thread(target=_pass_output, args=(channel, wire), daemon=True).start()
            with contextlib.suppress(*one.session.errors):
                while True:
                    kind, content = wire.receive(None)
                    if kind == INPUT:
                        channel.sendall(content)
                    elif kind == PROGRAM:
                        channel.exec_command(content.decode())


def _pass_output(channel: Any, wire: Wire) -> None:
    """Sends the output of a channel to a run until its end, or until the run is gone."""

    def stderr() -> None:
        with contextlib.suppress(Exception):
            while data := channel.recv_stderr(keeper_socket.BLOCK):
                wire.send(ERRORS, data)

    beside = threading.Thread(target=stderr, daemon=True)
    beside.start()
    try:
        while data := channel.recv(keeper_socket.BLOCK):
            wire.send(OUTPUT, data)
        beside.join()
        wire.send(ENDED)
    except Exception:  # the connection to the host, or that to the run, is lost: the other one ends too
        wire.shut()


def _say(wire: Wire, answer: dict[str, Any]) -> None:
    wire.send(ANSWER, json.dumps(answer).encode())


def _name(order: dict[str, Any]) -> str:
    """What makes the connection of an order another one: the host's name, and its connection variables."""
    return json.dumps([str(order["name"]), dict(order["variables"])], sort_keys=True)


def _seconds(request: dict[str, Any]) -> float:
    """For how long a connection is kept after its last use. Raises ValueError for another time than --keep allows."""
    seconds = float(request["keep_s"])
    if not 0 < seconds <= keeper_socket.LONGEST_S:
        raise ValueError("no time to keep a connection for")
    return seconds


def _host(order: dict[str, Any]) -> Host:
    return Host(str(order["name"]), (), dict(order["variables"]))


def _is_open(session: Session) -> bool:
    transport = session.connection.client.get_transport()
    return bool(transport is not None and transport.is_active())


def main() -> None:
    """The process: takes its first request from stdin, and serves until nothing is kept."""
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):  # as ssh-agent: no debugger of the same user, no core file
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    request = keeper_socket.document(sys.stdin.buffer.read(keeper_socket.MOST_FRAME))
    place = keeper_socket.place(make=True)
    if place is None:
        return
    opened = Listening.on(place)
    if opened is None:
        if wire := keeper_socket.connected(place):
            with contextlib.suppress(OSError, EOFError, ValueError):
                wire.ask(request, REQUEST_S)
        return
    try:
        keeper = Keeper()
        keeper.keep(request)
        keeper.serve(opened.socket)
    finally:
        opened.end()
