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
from paramiko.ssh_exception import IncompatiblePeer

from rigwright.core.control_characters import one_line
from rigwright.core.errors import LoginRefused, Unreachable
from rigwright.core.process import deadlines
from rigwright.inventory.model import Host
from rigwright.ssh import algorithms, host_keys, known_hosts as ssh_known_hosts, route
from rigwright.ssh.host_keys import KeyNotAccepted, OfferedKey
from rigwright.ssh.identities import KeyFileError, NoKeyError
from rigwright.ssh.pipelined_login import Login
from rigwright.ssh.route import Hop
from rigwright.ssh.session import Session

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # rigwright reports its errors as Unreachable

CONNECT_S = 20.0
"""The time limit of a login, seconds (assumed: enough for a busy host behind two gateways)."""
_LATER_S = 5.0
"""The seconds by which paramiko's own limits are longer, so that the message is that of rigwright's limit."""
_KEEPALIVE_S = 15
_UNACKNOWLEDGED_MS = 60_000
"""The time after which the kernel closes a connection with unacknowledged data (TCP_USER_TIMEOUT)."""
_ERRORS = (Unreachable, KeyFileError, paramiko.SSHException, OSError, EOFError, ValueError)
"""Errors of a login that `_Attempt.unreachable` explains."""


def open_session(
    host: Host,
    timeout_s: float,
    opening: Callable[[Callable[[], None]], None],
    early_exec: Callable[[str], str] = lambda _user: "",
) -> Session:
    """Opens a session with a host and its first channel within `timeout_s` seconds, with verified host keys.

    `opening` is called with a function that ends the attempt from any thread. `early_exec` returns the first program
    that a user runs, or "" if unknown; it is requested together with the login if the inventory or ssh_config names the
    key file.

    Raises Unreachable if the connection is refused or times out, a host key is unknown, revoked or has changed, or the
    authentication fails, and InputError for a wrong value in the inventory or in ssh_config.
    """
    try:
        return _session(host, timeout_s, opening, early_exec)
    except _PipelinedLoginFailed:
        return _session(host, timeout_s, opening, lambda _user: "")


class _PipelinedLoginFailed(Exception):
    """The server closed the connection during a pipelined login. A login that waits for each answer may succeed."""


class _Attempt:
    """An attempt to open connections, which ends after a time limit, or when any thread calls `abort`."""

    def __init__(self, host: Host, timeout_s: float) -> None:
        self.host = host
        self.timeout_s = timeout_s
        self.legacy = algorithms.allowed_for(host)
        self.sockets: list[socket.socket] = []
        self.commands: list[subprocess.Popen[bytes]] = []
        self.stderr: IO[bytes] | None = None
        """The stderr of a ProxyCommand."""
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
        ssh_known_hosts.learn(client.get_host_keys(), hop.records, route.known_as(connection.host, connection.port))
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
        except KeyNotAccepted as error:
            raise host_keys.refusal(self.where(hop), self.host, hop, error) from None

    def _login(self, sock: Any, hop: Hop, early_exec: str, **_options: Any) -> Login:
        login = Login(sock)
        algorithms.restrict(login, self.legacy, {record.key.get_name() for record in hop.records})
        login.early_exec = early_exec
        login.accept_host_key = partial(host_keys.require_recorded, hop)
        return login

    def dial(self, hop: Hop) -> socket.socket:
        """A socket to a hop without a gateway, also through its ProxyCommand. `abort` closes it. Raises OSError."""
        if hop.command:
            near, far = socket.socketpair()
            self.sockets.append(near)
            self.stderr = tempfile.TemporaryFile()  # noqa: SIM115  # it is closed with the attempt
            with far:
                end, errors = far.fileno(), self.stderr
                command = subprocess.Popen(hop.command, stdin=end, stdout=end, stderr=errors, start_new_session=True)
                self.commands.append(command)
            return near
        opened = _dial(hop.connection.host, hop.connection.port, self.sockets, self.timeout_s)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        return opened

    def where(self, hop: Hop) -> str:
        """The hop as errors name it."""
        return f"{self.host.name}{'' if hop.is_last else ': its gateway'} ({hop.connection.host}:{hop.connection.port})"

    def unreachable(self, hop: Hop, error: BaseException) -> Unreachable:
        """The error of a hop, for a person: the first row of a table whose condition is true."""
        if isinstance(error, Unreachable):
            return error
        if isinstance(error, KeyFileError):
            return Unreachable(self.where(hop), f"{error.found}: {error.where}", error.expected, error.fix)
        host, user, name, port = self.host, hop.connection.user, hop.connection.host, hop.connection.port
        text = (error.strerror if isinstance(error, OSError) else "") or str(error)
        login = f"{f'-p {port} ' if port != 22 else ''}{user}@{name}"
        jump = "" if hop.is_last else f"the ProxyJump of {host.address} in ~/.ssh/config"
        place = jump or _set_by(host, "ansible_host", "USER@HOST")
        in_port = jump or _set_by(host, "ansible_port", "USER@HOST:PORT")
        in_user = jump or f"ansible_user ({host.origin('ansible_user')})"
        no_key = isinstance(error, NoKeyError)
        refused = _is_refusal(error) and not no_key
        unused = "".join(
            f"{key.where} was not used, because {key.found}: {key.fix}; " for key in hop.identities.unusable[:1]
        )
        through = f" through {hop.command[0]}, the ProxyCommand" if hop.command else ""
        legacy = f"{algorithms.VARIABLE} in the inventory allows an old algorithm by name"
        table = (  # condition, what was found, what is expected, fix, brief words
            (no_key, f"no ssh key to log in with as {user}", "a key in ~/.ssh or an ssh-agent",
             f"ssh-keygen -t ed25519, if you have no key; then ssh-copy-id {login}", ""),
            (refused, f"the login as {user} was refused ({text})", "a user of the host, and an ssh key that it accepts",
             f"{unused}is {user} the right user? If not, set {in_user}; if so: ssh-copy-id {login}",
             f"ssh refused the key of {user}"),
            (isinstance(error, IncompatiblePeer),
             f"the host's ssh server and rigwright have no algorithm in common ({text})",
             "OpenSSH 7.3 or newer on the host", f"update its ssh server; {legacy}", ""),
            (isinstance(error, ConnectionRefusedError) or "Unable to connect to port" in text,
             "the connection was refused", "a running sshd on that port",
             f"is the machine up, and is the port right: {in_port}?", f"port {port} is closed"),
            (isinstance(error, (socket.gaierror, UnicodeError)), f"the name {name} cannot be resolved",
             "an address, or a name that has one",
             f"is the name right: {place}? If it is, write the IP address in its place", ""),
            (self.timed_out.is_set() or isinstance(error, TimeoutError), f"no login within {self.timeout_s:g} s",
             "a host that answers", f"is the machine on, and is the address right: {place}?", "no answer"),
            (getattr(error, "errno", None) in (errno.EHOSTUNREACH, errno.ENETUNREACH), f"no connection ({text})",
             "a machine that is on and in a network in reach",
             f"is the machine on, and is the address right: {place}? Does this machine reach it: ping {name}",
             "no answer"),
            (True, f"no connection{through} ({self._last_line() or text or 'the other side hung up'})", "an ssh login",
             f"ssh {login}", ""),
        )  # fmt: skip
        _, found, expected, fix, brief = next(row for row in table if row[0])
        brief = f"{brief} (the gateway {hop.known_as})" if brief and not hop.is_last else brief
        return (LoginRefused if refused else Unreachable)(self.where(hop), found, expected, fix, brief)

    def _last_line(self) -> str:
        """The last line that a ProxyCommand wrote to its stderr; "" without any."""
        if self.stderr is None:
            return ""
        size = self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(0, size - 300))
        lines = self.stderr.read().decode("utf-8", "replace").strip().splitlines()
        return one_line(lines[-1]) if lines else ""


def _set_by(host: Host, variable: str, form: str) -> str:
    """How a person sets a connection variable: in its file and line, or with the flag of init."""
    origin = host.origin(variable)
    return f"{origin} {form}" if origin.startswith("--") else f"{variable} ({origin})"


def _session(
    host: Host, timeout_s: float, opening: Callable[[Callable[[], None]], None], early_exec: Callable[[str], str]
) -> Session:
    attempt = _Attempt(host, timeout_s)
    last = hop = route.to(host)
    opening(attempt.abort)
    try:
        with attempt.limited():
            for hop in last.all:
                with_program = hop is last and last.identities.named
                attempt.open(hop, early_exec(hop.connection.user) if with_program else "")
            session = Session(host, last.connection, attempt.abort)
            session.accepted_key = last.identities.accepted
            session.open_first(time.monotonic() + timeout_s)
    except BaseException as error:
        login = last.connection.client.get_transport()
        closed_early = isinstance(login, Login) and login.sent_early_exec and not attempt.ended.is_set()
        attempt.abort()
        _close(last.all)
        if not isinstance(error, _ERRORS):
            raise
        if closed_early and not _is_refusal(error) and not isinstance(error, KeyFileError):
            raise _PipelinedLoginFailed from None
        raise attempt.unreachable(hop, error) from None
    session.legacy = sorted({name for hop in last.all for name in algorithms.in_use(hop.connection.transport)})
    last.connection.client.get_transport().set_keepalive(_KEEPALIVE_S)
    return session


def _close(hops: list[Hop]) -> None:
    for hop in reversed(hops):
        with contextlib.suppress(Exception):
            hop.connection.close()


def _is_refusal(error: BaseException) -> bool:
    """Whether the host refused the user. A closed connection does not count as a refusal."""
    return isinstance(error, paramiko.AuthenticationException) and "EOF" not in str(error)


def _dial(name: str, port: int, sockets: list[socket.socket], timeout_s: float) -> socket.socket:
    """A socket connected to the first address of a name that accepts the connection. Raises OSError if none does.

    Sockets are added to the list before they connect, so that another thread can close them.
    """
    failed: OSError = OSError(f"{name} has no address")
    encoded = name.encode() if name.isascii() else name  # for a str Python loads its IDNA tables, which takes 5 ms
    for family, kind, protocol, _, address in socket.getaddrinfo(encoded, port, type=socket.SOCK_STREAM):
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


def offered_keys(host: Host, timeout_s: float = CONNECT_S) -> Iterator[OfferedKey]:
    """The host keys that the gateways of a host, the nearest first, and the host offer now. Trusts none of them.

    Logs in to a gateway to reach the next hop, so the key of the gateway must be recorded before the next key is taken.
    Raises Unreachable if a hop offers no key within `timeout_s` seconds or a revoked one, and InputError.
    """
    for number in range(len(route.to(host).all)):
        hop = route.to(host).all[number]
        attempt = _Attempt(host, timeout_s)
        key = _offered_key(attempt, hop)
        if revoked := hop.why_revoked(key):
            raise host_keys.refusal(attempt.where(hop), host, hop, KeyNotAccepted(key, revoked, None))
        others = (record for record in hop.records if record.key != key)
        blocking = tuple(of for of in others if of.key.get_name() == key.get_name() and hop.precedes_own(of))
        yield OfferedKey(hop.known_as, key, tuple(hop.records), blocking, gateway=not hop.is_last)


def _offered_key(attempt: _Attempt, last: Hop) -> paramiko.PKey:
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
        _close(last.all[:-1])
        attempt.abort()
