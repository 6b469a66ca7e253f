"""A login that sends requests before it has the earlier answers, to a paramiko server on a socket pair."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import paramiko
import pytest

from rigwright.core.errors import Unreachable
from rigwright.inventory.model import Host
from rigwright.ssh import connect
from rigwright.ssh.pipelined_login import Login

HOST, RIGHT, WRONG = (paramiko.ECDSAKey.generate() for _ in range(3))


class Sshd(paramiko.ServerInterface):
    """A server that accepts one key and records the commands that it receives."""

    patience = threading.Event()
    """The server answers a key when this event is set, or after 20 s."""
    patience.set()
    asked_for_a_key = threading.Event()

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.heard = threading.Event()
        self.tried: list[str] = []

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.tried.append(username)
        self.asked_for_a_key.set()
        self.patience.wait(20)
        return paramiko.AUTH_SUCCESSFUL if key == RIGHT else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:  # noqa: ARG002
        self.asked.append(command)
        self.heard.set()
        return True


@contextmanager
def login(version: str = "OpenSSH_9.2p1", early_exec: str = "sudo -n sh") -> Iterator[tuple[Login, Sshd]]:
    """Yields a connected client and server."""
    near, far = socket.socketpair()
    server, sshd = paramiko.Transport(far), Sshd()
    server.local_version = f"SSH-2.0-{version}"  # type: ignore[attr-defined]
    server.add_server_key(HOST)
    client = Login(near)
    client.early_exec = early_exec
    try:
        server.start_server(event=threading.Event(), server=sshd)
        client.start_client(timeout=20)
        yield client, sshd
    finally:
        client.close()
        server.close()


def test_the_program_is_asked_for_with_the_login() -> None:
    with login() as (client, sshd):
        assert client.auth_publickey("ubuntu", RIGHT) == []
        found = client.first_channel(20)
        assert found is not None
        channel, program = found
        assert (program, client.sent_early_exec) == ("sudo -n sh", True)
        channel.sendall(b"a script, once its window is open")
        assert sshd.heard.wait(20)
        assert sshd.asked == [b"sudo -n sh"]
        assert client.first_channel(0) is None, "it is handed out once"


@pytest.mark.parametrize(("version", "early_exec"), [("dropbear_2022.83", "sudo -n sh"), ("OpenSSH_9.2p1", "")])
def test_where_nothing_goes_ahead(version: str, early_exec: str) -> None:
    with login(version, early_exec) as (client, sshd):
        assert client.auth_publickey("ubuntu", RIGHT) == []
        assert (client.first_channel(0), client.sent_early_exec) == (None, False)
        client.open_session(timeout=20).exec_command("true")
        assert sshd.asked == [b"true"]


@contextmanager
def listening(
    folder: Path, key: paramiko.PKey, *firsts: int, host_key: paramiko.PKey = HOST, kex: tuple[str, ...] = ()
) -> Iterator[tuple[Host, list[Sshd]]]:
    """Yields a host of the inventory that accepts a login with `key`, and a list of the servers that answered.

    `firsts` has the number of each server's first channel; `kex` replaces the server's key exchange algorithms.
    """
    file, known = folder / "key", folder / "known_hosts"
    key.write_private_key_file(str(file))
    served: list[Sshd] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        known.write_text(f"[127.0.0.1]:{port} {host_key.get_name()} {host_key.get_base64()}\n")

        def serve() -> None:
            for first in firsts:
                served.append(Sshd())
                server = paramiko.Transport(listener.accept()[0])
                server.local_version = "SSH-2.0-OpenSSH_9.2p1"  # type: ignore[attr-defined]
                server._channel_counter = first  # type: ignore[attr-defined]
                server.add_server_key(host_key)
                if kex:
                    server._preferred_kex = kex  # type: ignore[attr-defined]
                server.start_server(event=threading.Event(), server=served[-1])

        threading.Thread(target=serve, daemon=True).start()
        variables = {
            "ansible_host": "127.0.0.1", "ansible_port": port, "ansible_user": "u",
            "ansible_ssh_private_key_file": str(file), "ssh_known_hosts": str(known),
        }  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(folder))
            yield Host("one", (), variables), served


def test_a_server_that_hangs_up_on_what_is_ahead_of_it_is_asked_step_by_step(tmp_path: Path) -> None:
    """The server's first channel is not 0, so the early request to run the program names a wrong channel."""
    with listening(tmp_path, RIGHT, 3, 0) as (host, served):
        session = connect.open_session(host, 20, lambda _: None, lambda user: f"sh -c {user}")
        try:
            with session.channel(time.monotonic() + 20, "sh -c u"):
                assert served[-1].heard.wait(20)
        finally:
            session.close()
    assert [sshd.asked for sshd in served] == [[], [b"sh -c u"]]


def test_a_known_rsa_host_key_is_verified_with_sha2(tmp_path: Path) -> None:
    """known_hosts gives the key type as ssh-rsa; its signatures are rsa-sha2-512."""
    with listening(tmp_path, RIGHT, 0, host_key=paramiko.RSAKey.generate(2048)) as (host, _):
        session = connect.open_session(host, 20, lambda _: None, lambda _: "")
        assert session.connection.client.get_transport().host_key_type == "rsa-sha2-512"
        session.close()


def test_a_server_without_a_common_algorithm(tmp_path: Path) -> None:
    with (
        listening(tmp_path, RIGHT, 0, kex=("diffie-hellman-group1-sha1",)) as (host, _),
        pytest.raises(Unreachable, match="no algorithm in common") as caught,
    ):
        connect.open_session(host, 20, lambda _: None, lambda _: "")
    assert (caught.value.expected, caught.value.fix) == (
        "OpenSSH 7.3 or newer on the host",
        "update its ssh server; ssh_legacy_algorithms in the inventory allows an old algorithm by name",
    )


def test_a_key_that_is_refused_is_not_tried_again(tmp_path: Path) -> None:
    with listening(tmp_path, WRONG, 0, 0) as (host, served), pytest.raises(Unreachable, match="was refused"):
        connect.open_session(host, 20, lambda _: None, lambda _: "")
    assert sum(bool(sshd.tried) for sshd in served) == 1


def test_a_login_that_is_ended_from_here_is_not_tried_again(tmp_path: Path) -> None:
    """Closes the login as Ctrl-C does: the server has received the key request and has not answered."""
    aborts: list[Callable[[], None]] = []
    with listening(tmp_path, RIGHT, 0, 0) as (host, served):
        Sshd.patience.clear()
        Sshd.asked_for_a_key.clear()
        try:
            threading.Thread(target=lambda: (Sshd.asked_for_a_key.wait(20), aborts[0]()), daemon=True).start()
            with pytest.raises(Unreachable):
                connect.open_session(host, 20, aborts.append, lambda _: "sh")
        finally:
            Sshd.patience.set()
    assert (len(aborts), sum(bool(sshd.tried) for sshd in served)) == (1, 1)
