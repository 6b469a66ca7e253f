"""Opens SSH connections. It verifies the host keys of the host and of every gateway before it sends anything."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import paramiko
from fabric import Config, Connection
from paramiko.ssh_exception import IncompatiblePeer

from rigwright.core.errors import Unreachable
from rigwright.inventory.model import Host
from rigwright.ssh import known_hosts as ssh_known_hosts
from rigwright.ssh.pipelined_login import Login
from rigwright.ssh.session import Session

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # rigwright reports its errors as Unreachable

_KEY_KINDS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
"""The host key algorithms of paramiko. Like OpenSSH, rigwright requests only those with a key in known_hosts."""


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

    Raises Unreachable when the connection is refused or times out, a host key is unknown or has changed, or the
    authentication fails.
    """
    try:
        return _logged_in(host, timeout_s, opening, early_exec)
    except _PipelinedLoginFailed:
        return _logged_in(host, timeout_s, opening, lambda _user: "")


class _PipelinedLoginFailed(Exception):
    """The server closed the connection during a pipelined login. A login that waits for each answer may succeed."""


def _logged_in(
    host: Host, timeout_s: float, opening: Callable[[Callable[[], None]], None], early_exec: Callable[[str], str]
) -> Session:
    connection = _connection(host)
    sockets: list[socket.socket] = []
    ended = threading.Event()

    def abort() -> None:
        ended.set()
        for opened in sockets:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    opening(abort)
    timed_out: list[Any] = []  # the hop that was waited for

    def too_late() -> None:
        timed_out.append(_unfinished(connection))
        abort()

    timer = threading.Timer(timeout_s, too_late)
    timer.daemon = True
    timer.start()
    try:
        _prepare(connection, sockets, timeout_s, str(host.variables.get("ssh_known_hosts", "")))
        connection.connect_kwargs["transport_factory"] = partial(
            _login, early_exec=early_exec(connection.user) if connection.connect_kwargs.get("key_filename") else ""
        )
        connection.open()
        session = Session(host, connection, abort)
        session.open_first(time.monotonic() + timeout_s)
    except BaseException as error:
        hop = timed_out[0] if timed_out else _unfinished(connection)
        login = connection.client.get_transport()
        closed_early = isinstance(login, Login) and login.sent_early_exec and not ended.is_set()
        abort()
        with contextlib.suppress(Exception):
            connection.close()
        if not isinstance(error, (Unreachable, paramiko.SSHException, OSError, EOFError, ValueError)):
            raise
        reason = login.answer if isinstance(login, Login) and login.answer and _KEY_KIND in str(error) else error
        if closed_early and not _refused(reason):
            raise _PipelinedLoginFailed from None
        if isinstance(error, Unreachable):
            raise
        raise _unreachable(host, reason, bool(timed_out), timeout_s, connection, hop) from None
    finally:
        timer.cancel()
    connection.client.get_transport().set_keepalive(15)
    return session


def _login(*words: Any, early_exec: str, **options: Any) -> Login:
    login = Login(*words, **options)
    login.early_exec = early_exec
    return login


_KEY_KIND = "key, expected"
"""Part of paramiko's error message when it reads a key file as a key of the wrong type."""


def _refused(error: Exception) -> bool:
    """Whether the host refused the user. A closed connection does not count as a refusal."""
    return isinstance(error, paramiko.AuthenticationException) and "EOF" not in str(error)


def _unfinished(connection: Any) -> Any:
    """The first gateway of a connection without a login, or the connection when all gateways have one."""
    gateways = _hops(connection)[:-1]
    return next((hop for hop in gateways if not (hop.transport and hop.transport.is_authenticated())), connection)


def _unreachable(
    host: Host, error: Exception, timed_out: bool, timeout_s: float, connection: Any, hop: Any
) -> Unreachable:
    """The error of a connection; `hop` is the connection itself or the gateway on its way that failed."""
    gateway = hop is not connection
    where = f"{host.name}{': its gateway' if gateway else ''} ({hop.host}:{hop.port})"
    jump = f"the ProxyJump of {host.address} in ~/.ssh/config"
    text = (error.strerror if isinstance(error, OSError) else "") or str(error)
    unknown = re.search(r"Server '(.*)' not found in known_hosts", text)
    if unknown and unknown[1] != _known_name(connection):
        found = f"the host key of the gateway {unknown[1]} is not known"
        fix = f"ssh {unknown[1].strip('[]').split(']')[0]}, and compare the key"
        return Unreachable(where, found, "a key that you have checked", fix)
    if unknown:
        fix = f"invoke trust --host {host.name}"
        return Unreachable(where, "the host key is not known", "a key that you have checked", fix)
    if isinstance(error, paramiko.BadHostKeyException):
        found = f"the host key has changed: it is now {ssh_known_hosts.fingerprint(error.key)}"
        old, todo = _counting(connection, host, error.expected_key), f"invoke trust --host {host.name}"
        expected = f"the recorded {ssh_known_hosts.fingerprint(error.expected_key)}"
        if old is not None:
            expected += f" ({', '.join(text for text in (old.where, old.since) if text)})"
            todo = f"{old.removal}, then {todo}" if _precedes_own(connection, old) else f"{todo}; that key then counts"
        return Unreachable(where, found, expected, f"if the machine was re-installed or replaced: {todo}")
    if isinstance(error, paramiko.PasswordRequiredException):
        key = host.connection("ansible_ssh_private_key_file") or "the key"
        return Unreachable(where, f"the ssh key {key} is encrypted", "a key that an ssh-agent holds", f"ssh-add {key}")
    if _refused(error):
        found = f"the login as {hop.user} was refused ({text})"
        right = jump if gateway else f"ansible_user ({host.origin('ansible_user')})"
        fix = f"is {hop.user} the right user? If not, set {right}; if so: {_ssh('ssh-copy-id', hop)}"
        return Unreachable(where, found, "a user of the host, and an ssh key that it accepts", fix)
    if "No authentication methods available" in text:
        fix = f"ssh-keygen -t ed25519, if you have no key; then {_ssh('ssh-copy-id', hop)}"
        return Unreachable(where, f"no ssh key to log in with as {hop.user}", "a key in ~/.ssh or an ssh-agent", fix)
    if isinstance(error, IncompatiblePeer):
        found = f"the host's ssh server and rigwright have no algorithm in common ({text})"
        return Unreachable(where, found, "OpenSSH 7.2 or newer on the host", "update the host's ssh server")
    if isinstance(error, ConnectionRefusedError) or "Unable to connect to port" in text:
        right = jump if gateway else f"ansible_port ({host.origin('ansible_port')})"
        todo = f"is the machine up, and is the port right: {right}?"
        return Unreachable(where, "the connection was refused", "a running sshd on that port", todo)
    address = jump if gateway else f"ansible_host ({host.where})"
    if isinstance(error, (socket.gaierror, UnicodeError)):
        todo = f"is the name right: {address}? If it is, write the IP address there"
        return Unreachable(where, f"the name {hop.host} cannot be resolved", "an address, or a name that has one", todo)
    if timed_out or isinstance(error, TimeoutError):
        todo = f"is the machine on, and is the address right: {address}?"
        return Unreachable(where, f"no login within {timeout_s:g} s", "a host that answers", todo)
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        todo = f"is the machine on, and is the address right: {address}? Does this machine reach it: ping {hop.host}"
        return Unreachable(where, f"no connection ({text})", "a machine that is on and in a network in reach", todo)
    found = f"no connection ({text or 'the other side hung up'})"
    return Unreachable(where, found, "an ssh login", _ssh("ssh", hop))


def _ssh(program: str, hop: Any) -> str:
    """The command line of a program of OpenSSH for the user, address and port of a hop."""
    return f"{program} {f'-p {hop.port} ' if hop.port != 22 else ''}{hop.user}@{hop.host}"


def _connection(host: Host) -> Any:
    user, port = host.connection("ansible_user"), host.connection("ansible_port")
    connect: dict[str, Any] = {}
    if (key := host.connection("ansible_ssh_private_key_file")) is not None:
        connect = {"key_filename": [os.path.expanduser(str(key))], "look_for_keys": False}
    return Connection(
        host.address,
        user=None if user is None else str(user),
        port=None if port is None else int(port),
        config=Config(overrides={"run": {"in_stream": False}}),  # one per connection, because Fabric changes it
        connect_kwargs=connect,
    )


def _prepare(connection: Any, sockets: list[socket.socket], timeout_s: float, known_hosts: str) -> None:
    """Sets known hosts, the rejection of unknown keys, and time limits for a connection and its gateways.

    Opens the gateways, and the socket to the first of them or to the host.
    """
    connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    _known_hosts(connection, known_hosts)
    connection.connect_kwargs.setdefault("banner_timeout", timeout_s)
    connection.connect_kwargs.setdefault("auth_timeout", timeout_s)
    connection.connect_timeout = None  # ignore the timeout of ssh_config; timeout_s applies
    connection.connect_kwargs.setdefault("timeout", timeout_s)
    if isinstance(connection.gateway, Connection):
        _prepare(connection.gateway, sockets, timeout_s, known_hosts)
        connection.gateway.open()
    elif connection.gateway is None:
        opened = _dial(connection.host, connection.port, sockets, timeout_s)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
        connection.connect_kwargs["sock"] = opened


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


def _known_hosts(connection: Any, extra: str) -> None:
    keys = connection.client.get_host_keys()
    name = _known_name(connection)
    alias = connection.ssh_config.get("hostkeyalias")
    for file, known_as in _places(connection, extra):
        ssh_known_hosts.learn(keys, file, known_as)
    if alias and keys.lookup(alias):
        for kind, key in keys.lookup(alias).items():
            keys.add(name, kind, key)
    kinds = set(keys.lookup(name) or ())
    if kinds:
        kinds |= {"rsa-sha2-256", "rsa-sha2-512"} if "ssh-rsa" in kinds else set()
        others = [kind for kind in _KEY_KINDS if kind not in kinds]
        connection.connect_kwargs["disabled_algorithms"] = {"keys": others}


def _places(connection: Any, extra: str) -> Iterator[tuple[Path, str]]:
    """The files of known hosts, the first that has a key counts, each with the names that it is looked up by."""
    named = str(connection.ssh_config.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")).split()
    alias = connection.ssh_config.get("hostkeyalias")
    for file in [*named, "/etc/ssh/ssh_known_hosts", str(ssh_known_hosts.OWN), *([extra] if extra else [])]:
        for known_as in [_known_name(connection), *([alias] if alias else [])]:
            yield Path(file).expanduser(), known_as


def _records(connection: Any, extra: str) -> Iterator[ssh_known_hosts.Record]:
    return (record for file, name in _places(connection, extra) for record in ssh_known_hosts.recorded(file, name))


def _precedes_own(connection: Any, record: ssh_known_hosts.Record) -> bool:
    """Whether the file of a record counts before rigwright's own, so that `trust` alone does not replace the key."""
    files = [file for file, _ in _places(connection, "")]
    return record.path in files[: files.index(ssh_known_hosts.OWN.expanduser())]


def _counting(connection: Any, host: Host, key: paramiko.PKey) -> ssh_known_hosts.Record | None:
    """The record of a key of the host or of a gateway on its way."""
    extra = str(host.variables.get("ssh_known_hosts", ""))
    return next((record for hop in _hops(connection) for record in _records(hop, extra) if record.key == key), None)


def _hops(connection: Any) -> list[Any]:
    """The gateways of a connection, the nearest first, and the connection."""
    gateway = connection.gateway
    return [*(_hops(gateway) if isinstance(gateway, Connection) else ()), connection]


def _known_name(connection: Any) -> str:
    """The name of a connection's host in known_hosts: HOST, or [HOST]:PORT for a port other than 22."""
    return str(connection.host) if connection.port == 22 else f"[{connection.host}]:{connection.port}"


@dataclass(frozen=True)
class OfferedKey:
    """The host key that a host or a gateway on its way offers.

    `name`: its name in known_hosts. `records`: the keys of that name in all files of known hosts, those that count first.
    `blocking`: other keys of its kind that count before one that `known_hosts.trust` records. `gateway`: whether it is of a
    gateway.
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

    Logs in to a gateway to reach what is behind it, so the key of the gateway must be recorded before the next is taken.
    Raises Unreachable when one offers no key within `timeout_s` seconds.
    """
    extra = str(host.variables.get("ssh_known_hosts", ""))
    count = len(_hops(_connection(host)))
    for number in range(count):
        connection = _hops(_connection(host))[number]
        key = _offered(connection, host, timeout_s, extra)
        records = tuple(_records(connection, extra))
        blocking = tuple(
            record
            for record in records
            if record.key != key and record.key.get_name() == key.get_name() and _precedes_own(connection, record)
        )
        yield OfferedKey(_known_name(connection), key, records, blocking, gateway=number < count - 1)


def _offered(connection: Any, host: Host, timeout_s: float, extra: str) -> paramiko.PKey:
    sockets: list[socket.socket] = []
    try:
        if isinstance(connection.gateway, Connection):
            _prepare(connection.gateway, sockets, timeout_s, extra)
        if connection.gateway is not None:
            opened = connection.open_gateway()
        else:
            opened = socket.create_connection((connection.host, connection.port), timeout=timeout_s)
        transport = paramiko.Transport(opened)
        timer = threading.Timer(timeout_s, opened.close)
        timer.start()
        try:
            transport.start_client(timeout=timeout_s)
            return transport.get_remote_server_key()
        finally:
            timer.cancel()
            transport.close()
    except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
        hop = _unfinished(connection)
        raise _unreachable(host, error, False, timeout_s, connection, hop) from None
    finally:
        if isinstance(connection.gateway, Connection):
            with contextlib.suppress(Exception):
                connection.gateway.close()
        for each in sockets:
            each.close()
