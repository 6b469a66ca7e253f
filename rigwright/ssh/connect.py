"""Opens SSH connections. It verifies the host keys of the host and of every gateway before it sends anything."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any

import paramiko
from msgspec import Struct
from paramiko.ssh_exception import IncompatiblePeer

from rigwright.core.control_characters import one_line
from rigwright.core.errors import HostKeyRefused, LoginRefused, Unreachable
from rigwright.core.process import deadlines
from rigwright.inventory.model import Host
from rigwright.ssh import algorithms, route
from rigwright.ssh import known_hosts as ssh_known_hosts
from rigwright.ssh.identities import KeyFileError, NoKeyError
from rigwright.ssh.pipelined_login import Login
from rigwright.ssh.route import Hop
from rigwright.ssh.session import Session

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # rigwright reports its errors as Unreachable

_ERRORS = (Unreachable, KeyFileError, paramiko.SSHException, OSError, EOFError, ValueError)
"""What ends a login for a reason that a person can understand."""
_LATER_S = 5.0
"""paramiko's own limits end so long after that of the attempt, which therefore names the reason."""


def verified(
    host: Host,
    timeout_s: float,
    opening: Callable[[Callable[[], None]], None],
    early_exec: Callable[[str], str] = lambda _user: "",
) -> Session:
    """Opens a session with a host and its first channel within `timeout_s` seconds, with verified host keys.

    `opening` is called with a function that ends the attempt from any thread. `early_exec` returns the program that a
    user runs first, or "" when it is not known; the program is requested together with the login when the inventory or
    ssh_config names the key file.

    Raises Unreachable when the connection is refused or times out, a host key is unknown, revoked or has changed, or
    the authentication fails, and InputError for a wrong value in the inventory or in ssh_config.
    """
    try:
        return _logged_in(host, timeout_s, opening, early_exec)
    except _PipelinedLoginFailed:
        return _logged_in(host, timeout_s, opening, lambda _user: "")


class _PipelinedLoginFailed(Exception):
    """The server closed the connection during a pipelined login. A login that waits for each answer may succeed."""


class _KeyNotAccepted(Exception):
    """The host key of a hop is not one on record."""

    def __init__(self, key: paramiko.PKey, revoked: str, recorded: ssh_known_hosts.Record | None) -> None:
        super().__init__("the host key is not accepted")
        self.key = key
        self.revoked = revoked
        self.recorded = recorded


class _Attempt:
    """An attempt to open connections, which ends after a time limit or from any thread."""

    def __init__(self, host: Host, timeout_s: float) -> None:
        self.host = host
        self.timeout_s = timeout_s
        self.legacy = algorithms.allowed(host)
        self.sockets: list[socket.socket] = []
        self.commands: list[subprocess.Popen[bytes]] = []
        self.said: IO[bytes] | None = None
        """What a ProxyCommand wrote to its stderr."""
        self.ended = threading.Event()
        self.timed_out = threading.Event()

    def abort(self) -> None:
        """Closes the sockets from any thread."""
        self.ended.set()
        for opened in self.sockets:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        for command in self.commands:
            command.terminate()

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Aborts after the time limit."""

        def too_late() -> None:
            self.timed_out.set()
            self.abort()

        deadline = deadlines.after(self.timeout_s, too_late)
        try:
            yield
        finally:
            deadline.cancel()

    def open(self, hop: Hop, program: str = "") -> None:
        """Opens a hop whose gateway is open; with its login it requests a program. Raises what `_ERRORS` has."""
        connection = hop.connection
        client = connection.client
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        ssh_known_hosts.learn(client.get_host_keys(), hop.records, _of_paramiko(connection))
        if not hop.gateway:
            connection.connect_kwargs["sock"] = self.dial(hop)
        connection.connect_kwargs.update(
            banner_timeout=self.timeout_s + _LATER_S,
            auth_timeout=self.timeout_s + _LATER_S,
            timeout=self.timeout_s + _LATER_S,
            auth_strategy=hop.identities,
            transport_factory=partial(self._login, hop=hop, early_exec=program),
        )
        try:
            connection.open()
        except _KeyNotAccepted as error:
            raise self.key_not_accepted(hop, error) from None

    def _login(self, sock: Any, hop: Hop, early_exec: str, **_options: Any) -> Login:
        login = Login(sock)
        algorithms.restrict(login, self.legacy, {record.key.get_name() for record in hop.records})
        login.early_exec = early_exec
        login.accept_host_key = partial(_require_recorded, hop)
        return login

    def dial(self, hop: Hop) -> socket.socket:
        """A socket to a hop without a gateway, also through its ProxyCommand. `abort` closes it. Raises OSError."""
        if hop.command:
            near, far = socket.socketpair()
            self.sockets.append(near)
            self.said = tempfile.TemporaryFile()  # noqa: SIM115  # it is closed with the attempt
            with far:
                end, said = far.fileno(), self.said.fileno()
                command = subprocess.Popen(hop.command, stdin=end, stdout=end, stderr=said, start_new_session=True)
                self.commands.append(command)
            return near
        opened = _dial(hop.connection.host, hop.connection.port, self.sockets, self.timeout_s)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
        return opened

    def key_not_accepted(self, hop: Hop, error: _KeyNotAccepted) -> HostKeyRefused:
        """The error of a hop whose host key is not accepted."""
        where, todo = self._where(hop), f"invoke trust --host {self.host.name}"
        which = "the host key" if hop.is_last else f"the host key of the gateway {hop.known_as}"
        if error.revoked:
            found = f"{which} is revoked ({error.revoked}): {ssh_known_hosts.fingerprint(error.key)}"
            todo = "make a new host key on that machine"
            return HostKeyRefused(where, found, "a key that is not revoked", todo, f"{which} is revoked")
        if error.recorded is None:
            authority = next(filter(None, (ssh_known_hosts.authority(file, hop.known_as) for file in hop.files)), "")
            expected = "a key that you have checked"
            expected += f"; certificates of an authority ({authority}) are not supported" if authority else ""
            return HostKeyRefused(where, f"{which} is not known", expected, todo)
        old = error.recorded
        found = f"{which} has changed: it is now {ssh_known_hosts.fingerprint(error.key)}"
        expected = f"the recorded {ssh_known_hosts.fingerprint(old.key)}"
        expected += f" ({', '.join(text for text in (old.where, old.since) if text)})"
        todo = f"{old.removal}, then {todo}" if hop.precedes_own(old) else f"{todo}; that key then counts"
        fix = f"if the machine was re-installed or replaced: {todo}"
        return HostKeyRefused(where, found, expected, fix, f"{which} is another one")

    def _where(self, hop: Hop) -> str:
        return f"{self.host.name}{'' if hop.is_last else ': its gateway'} ({hop.connection.host}:{hop.connection.port})"

    def unreachable(self, hop: Hop, error: BaseException) -> Unreachable:
        """The error of a hop, for a person."""
        if isinstance(error, Unreachable):
            return error
        host, connection, where = self.host, hop.connection, self._where(hop)
        jump = f"the ProxyJump of {host.address} in ~/.ssh/config"
        address = _set_by(host, "ansible_host", "USER@HOST") if hop.is_last else jump
        text = (error.strerror if isinstance(error, OSError) else "") or str(error)
        if isinstance(error, KeyFileError):
            return Unreachable(where, f"{error.found}: {error.where}", error.expected, error.fix)
        if isinstance(error, NoKeyError):
            fix = f"ssh-keygen -t ed25519, if you have no key; then {_ssh('ssh-copy-id', connection)}"
            found = f"no ssh key to log in with as {connection.user}"
            return Unreachable(where, found, "a key in ~/.ssh or an ssh-agent", fix)
        if _refused(error):
            found = f"the login as {connection.user} was refused ({text})"
            right = f"ansible_user ({host.origin('ansible_user')})" if hop.is_last else jump
            fix = f"is {connection.user} the right user? If not, set {right}; if so: {_ssh('ssh-copy-id', connection)}"
            if unusable := hop.identities.unusable:
                fix = f"{unusable[0].where} was not used, because {unusable[0].found}: {unusable[0].fix}; {fix}"
            brief = self._brief(hop, f"ssh refused the key of {connection.user}")
            return LoginRefused(where, found, "a user of the host, and an ssh key that it accepts", fix, brief)
        if isinstance(error, IncompatiblePeer):
            found = f"the host's ssh server and rigwright have no algorithm in common ({text})"
            fix = f"update its ssh server; {algorithms.VARIABLE} in the inventory allows an old algorithm by name"
            return Unreachable(where, found, "OpenSSH 7.3 or newer on the host", fix)
        if isinstance(error, ConnectionRefusedError) or "Unable to connect to port" in text:
            right = _set_by(host, "ansible_port", "USER@HOST:PORT") if hop.is_last else jump
            todo = f"is the machine up, and is the port right: {right}?"
            brief = self._brief(hop, f"port {connection.port} is closed")
            return Unreachable(where, "the connection was refused", "a running sshd on that port", todo, brief)
        if isinstance(error, (socket.gaierror, UnicodeError)):
            todo = f"is the name right: {address}? If it is, write the IP address in its place"
            found = f"the name {connection.host} cannot be resolved"
            return Unreachable(where, found, "an address, or a name that has one", todo)
        if self.timed_out.is_set() or isinstance(error, TimeoutError):
            todo = f"is the machine on, and is the address right: {address}?"
            found, brief = f"no login within {self.timeout_s:g} s", self._brief(hop, "no answer")
            return Unreachable(where, found, "a host that answers", todo, brief)
        if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            reach = f"Does this machine reach it: ping {connection.host}"
            todo = f"is the machine on, and is the address right: {address}? {reach}"
            found, brief = f"no connection ({text})", self._brief(hop, "no answer")
            return Unreachable(where, found, "a machine that is on and in a network in reach", todo, brief)
        through = f" through {hop.command[0]}, the ProxyCommand" if hop.command else ""
        found = f"no connection{through} ({self._last_words() or text or 'the other side hung up'})"
        return Unreachable(where, found, "an ssh login", _ssh("ssh", connection))

    def _brief(self, hop: Hop, seen: str) -> str:
        return seen if hop.is_last else f"{seen} (the gateway {hop.known_as})"

    def _last_words(self) -> str:
        """The last line that a ProxyCommand wrote to its stderr; "" without any."""
        if self.said is None:
            return ""
        size = self.said.seek(0, os.SEEK_END)
        self.said.seek(max(0, size - 300))
        lines = self.said.read().decode("utf-8", "replace").strip().splitlines()
        return one_line(lines[-1]) if lines else ""


def _set_by(host: Host, variable: str, form: str) -> str:
    """How a person sets a connection variable: in the file and line where it stands, or with the flag of init."""
    origin = host.origin(variable)
    return f"{origin} {form}" if origin.startswith("--") else f"{variable} ({origin})"


def _ssh(program: str, connection: Any) -> str:
    """The command line of a program of OpenSSH for the user, address and port of a connection."""
    port = f"-p {connection.port} " if connection.port != 22 else ""
    return f"{program} {port}{connection.user}@{connection.host}"


def _require_recorded(hop: Hop, key: paramiko.PKey) -> None:
    """Raises _KeyNotAccepted for a host key that is revoked, or is not the first on record of its kind."""
    records = hop.records
    same_kind = [record for record in records if record.key.get_name() == key.get_name()]
    if revoked := hop.why_revoked(key):
        raise _KeyNotAccepted(key, revoked, None)
    if not same_kind or same_kind[0].key != key:
        raise _KeyNotAccepted(key, "", next(iter(same_kind or records), None))


def _of_paramiko(connection: Any) -> str:
    """The name by which paramiko looks up the host key of a connection."""
    return str(connection.host) if connection.port == 22 else f"[{connection.host}]:{connection.port}"


def _logged_in(
    host: Host, timeout_s: float, opening: Callable[[Callable[[], None]], None], early_exec: Callable[[str], str]
) -> Session:
    attempt = _Attempt(host, timeout_s)
    last = hop = route.to(host)
    opening(attempt.abort)
    try:
        with attempt.limited():
            for hop in last.all:
                at_once = hop is last and last.identities.named
                attempt.open(hop, early_exec(hop.connection.user) if at_once else "")
            session = Session(host, last.connection, attempt.abort)
            session.accepted_key = last.identities.accepted
            session.open_first(time.monotonic() + timeout_s)
    except BaseException as error:
        login = last.connection.client.get_transport()
        closed_early = isinstance(login, Login) and login.sent_early_exec and not attempt.ended.is_set()
        attempt.abort()
        for opened in reversed(last.all):
            with contextlib.suppress(Exception):
                opened.connection.close()
        if not isinstance(error, _ERRORS):
            raise
        if closed_early and not _refused(error) and not isinstance(error, KeyFileError):
            raise _PipelinedLoginFailed from None
        raise attempt.unreachable(hop, error) from None
    session.legacy = sorted({name for hop in last.all for name in algorithms.in_use(hop.connection.transport)})
    last.connection.client.get_transport().set_keepalive(15)
    return session


def _refused(error: BaseException) -> bool:
    """Whether the host refused the user. A closed connection does not count as a refusal."""
    return isinstance(error, paramiko.AuthenticationException) and "EOF" not in str(error)


def _dial(name: str, port: int, sockets: list[socket.socket], timeout_s: float) -> socket.socket:
    """A socket connected to the first address of a name that accepts the connection. Raises OSError when none does.

    Sockets are added to the list before they connect, so that another thread can close them.
    """
    failed: OSError = OSError(f"{name} has no address")
    asked = name.encode() if name.isascii() else name  # for a str Python loads its IDNA tables, which takes 5 ms
    for family, kind, protocol, _, address in socket.getaddrinfo(asked, port, type=socket.SOCK_STREAM):
        opened = socket.socket(family, kind, protocol)
        sockets.append(opened)
        opened.settimeout(timeout_s)
        try:
            opened.connect(address)
            return opened
        except OSError as error:
            opened.close()
            failed = error
    raise failed


class OfferedKey(Struct, frozen=True):
    """The host key that a host or a gateway on its way offers.

    `name`: its name in known_hosts. `records`: the keys of that name in all files of known hosts, those that count
    first. `blocking`: other keys of its kind that count before one that `known_hosts.trust` records. `gateway`: whether
    it is of a gateway.
    """

    name: str
    key: paramiko.PKey
    records: tuple[ssh_known_hosts.Record, ...]
    blocking: tuple[ssh_known_hosts.Record, ...]
    gateway: bool

    @property
    def known(self) -> ssh_known_hosts.Record | None:
        """The record of this key that counts; None when there is none, or another key counts."""
        same_kind = [record for record in self.records if record.key.get_name() == self.key.get_name()]
        return same_kind[0] if same_kind and same_kind[0].key == self.key else None

    @property
    def others(self) -> tuple[ssh_known_hosts.Record, ...]:
        """The records of other keys."""
        return tuple(record for record in self.records if record.key != self.key)


def offered_keys(host: Host, timeout_s: float) -> Iterator[OfferedKey]:
    """The host keys that the gateways of a host, the nearest first, and the host offer now. Trusts none of them.

    Logs in to a gateway to reach what is behind it, so the key of the gateway must be recorded before the next is
    taken. Raises Unreachable when one offers no key within `timeout_s` seconds or a revoked one, and InputError.
    """
    for number in range(len(route.to(host).all)):
        hop = route.to(host).all[number]
        attempt = _Attempt(host, timeout_s)
        key = _offered(attempt, hop)
        if revoked := hop.why_revoked(key):
            raise attempt.key_not_accepted(hop, _KeyNotAccepted(key, revoked, None))
        records = tuple(hop.records)
        blocking = tuple(
            record
            for record in records
            if record.key != key and record.key.get_name() == key.get_name() and hop.precedes_own(record)
        )
        yield OfferedKey(hop.known_as, key, records, blocking, gateway=not hop.is_last)


def _offered(attempt: _Attempt, last: Hop) -> paramiko.PKey:
    hop = last
    connection = last.connection
    try:
        with attempt.limited():
            for hop in last.all[:-1]:
                attempt.open(hop)
            hop = last
            opened = connection.open_gateway() if last.gateway else attempt.dial(last)
            login = Login(opened)
            algorithms.restrict(login, attempt.legacy)
            try:
                login.start_client(timeout=attempt.timeout_s)
                return login.get_remote_server_key()
            finally:
                login.close()
    except _ERRORS as error:
        raise attempt.unreachable(hop, error) from None
    finally:
        for each in reversed(last.all[:-1]):
            with contextlib.suppress(Exception):
                each.connection.close()
        attempt.abort()
