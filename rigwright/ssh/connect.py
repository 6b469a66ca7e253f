"""Opens SSH connections. It verifies the host keys of the host and of every gateway before it sends anything."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable
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
    timed_out = threading.Event()

    def too_late() -> None:
        timed_out.set()
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
        raise _unreachable(host, reason, timed_out.is_set(), timeout_s, connection) from None
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


def _unreachable(host: Host, error: Exception, timed_out: bool, timeout_s: float, connection: Any) -> Unreachable:
    where = f"{host.name} ({connection.host}:{connection.port})"
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
        todo = f"if the machine was re-installed: ssh-keygen -R {error.hostname}, then invoke trust --host {host.name}"
        return Unreachable(where, found, f"the recorded {ssh_known_hosts.fingerprint(error.expected_key)}", todo)
    if isinstance(error, paramiko.PasswordRequiredException):
        key = host.connection("ansible_ssh_private_key_file") or "the key"
        return Unreachable(where, f"the ssh key {key} is encrypted", "a key that an ssh-agent holds", f"ssh-add {key}")
    if _refused(error):
        found = f"the login as {connection.user} was refused ({text})"
        fix = f"ssh-copy-id {connection.user}@{host.address}"
        return Unreachable(where, found, "an ssh key that the host accepts", fix)
    if isinstance(error, IncompatiblePeer):
        found = f"the host's ssh server and rigwright have no algorithm in common ({text})"
        return Unreachable(where, found, "OpenSSH 7.2 or newer on the host", "update the host's ssh server")
    if isinstance(error, ConnectionRefusedError) or "Unable to connect to port" in text:
        todo = "is the machine up, and is ansible_port right?"
        return Unreachable(where, "the connection was refused", "a running sshd on that port", todo)
    if isinstance(error, (socket.gaierror, UnicodeError)):
        todo = f"set ansible_host for {host.name}: {host.where}"
        return Unreachable(where, "the name cannot be resolved", "an address, or a name that has one", todo)
    if timed_out or isinstance(error, TimeoutError):
        todo = f"is ansible_host right ({host.where}), and the machine on?"
        return Unreachable(where, f"no login within {timeout_s:g} s", "a host that answers", todo)
    found = f"no connection ({text or 'the other side hung up'})"
    return Unreachable(where, found, "an ssh login", f"ssh {host.address}")


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
    named = str(connection.ssh_config.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")).split()
    name = _known_name(connection)
    alias = connection.ssh_config.get("hostkeyalias")
    for file in [*named, "/etc/ssh/ssh_known_hosts", str(ssh_known_hosts.OWN), *([extra] if extra else [])]:
        for known_as in [name, *([alias] if alias else [])]:
            ssh_known_hosts.learn(keys, Path(file).expanduser(), known_as)
    if alias and keys.lookup(alias):
        for kind, key in keys.lookup(alias).items():
            keys.add(name, kind, key)
    kinds = set(keys.lookup(name) or ())
    if kinds:
        kinds |= {"rsa-sha2-256", "rsa-sha2-512"} if "ssh-rsa" in kinds else set()
        others = [kind for kind in _KEY_KINDS if kind not in kinds]
        connection.connect_kwargs["disabled_algorithms"] = {"keys": others}


def _known_name(connection: Any) -> str:
    """The name of a connection's host in known_hosts: HOST, or [HOST]:PORT for a port other than 22."""
    return str(connection.host) if connection.port == 22 else f"[{connection.host}]:{connection.port}"


def is_known(host: Host, key: paramiko.PKey) -> bool:
    """Whether one of the known_hosts files of a connection has this key for the host."""
    connection = _connection(host)
    _known_hosts(connection, str(host.variables.get("ssh_known_hosts", "")))
    known = connection.client.get_host_keys().lookup(_known_name(connection)) or {}
    return key in known.values()


def offered_key(host: Host, timeout_s: float) -> tuple[str, paramiko.PKey]:
    """The name of a host in known_hosts, and the host key that it offers now. Does not trust the key, does not log in.

    Raises Unreachable when the host does not offer a key within `timeout_s` seconds.
    """
    connection = _connection(host)
    try:
        opened = socket.create_connection((connection.host, connection.port), timeout=timeout_s)
        transport = paramiko.Transport(opened)
        timer = threading.Timer(timeout_s, opened.close)
        timer.start()
        try:
            transport.start_client(timeout=timeout_s)
            key = transport.get_remote_server_key()
        finally:
            timer.cancel()
            transport.close()
    except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
        raise _unreachable(host, error, False, timeout_s, connection) from None
    return _known_name(connection), key
