"""A login that does not wait for each answer, against a server of paramiko's on a pair of sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import paramiko
import pytest

from rigwright import ssh
from rigwright.errors import Unreachable
from rigwright.hosts import Host
from rigwright.login import Login

HOST, RIGHT, WRONG = (paramiko.ECDSAKey.generate() for _ in range(3))


class Sshd(paramiko.ServerInterface):
    """Lets one key in, and notes what it is asked to run."""

    patience = threading.Event()
    """It answers a key once this is set."""
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
def login(version: str = "OpenSSH_9.2p1", ahead: str = "sudo -n sh") -> Iterator[tuple[Login, Sshd]]:
    """A client and a server, connected."""
    near, far = socket.socketpair()
    server, sshd = paramiko.Transport(far), Sshd()
    server.local_version = f"SSH-2.0-{version}"  # type: ignore[attr-defined]
    server.add_server_key(HOST)
    client = Login(near)
    client.ahead = ahead
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
        assert (program, client.went_ahead) == ("sudo -n sh", True)
        channel.sendall(b"a script, once its window is open")
        assert sshd.heard.wait(20)
        assert sshd.asked == [b"sudo -n sh"]
        assert client.first_channel(0) is None, "it is handed out once"


@pytest.mark.parametrize(("version", "ahead"), [("dropbear_2022.83", "sudo -n sh"), ("OpenSSH_9.2p1", "")])
def test_where_nothing_goes_ahead(version: str, ahead: str) -> None:
    with login(version, ahead) as (client, sshd):
        assert client.auth_publickey("ubuntu", RIGHT) == []
        assert (client.first_channel(0), client.went_ahead) == (None, False)
        client.open_session(timeout=20).exec_command("true")
        assert sshd.asked == [b"true"]


@contextmanager
def listening(folder: Path, key: paramiko.PKey, *firsts: int) -> Iterator[tuple[Host, list[Sshd]]]:
    """A host of the inventory that is logged in to with a key, and the servers that it has had: each with the number of its first
    channel."""
    file, known = folder / "key", folder / "known_hosts"
    key.write_private_key_file(str(file))
    served: list[Sshd] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        known.write_text(f"[127.0.0.1]:{port} {HOST.get_name()} {HOST.get_base64()}\n")

        def serve() -> None:
            for first in firsts:
                served.append(Sshd())
                server = paramiko.Transport(listener.accept()[0])
                server.local_version = "SSH-2.0-OpenSSH_9.2p1"  # type: ignore[attr-defined]
                server._channel_counter = first  # type: ignore[attr-defined]
                server.add_server_key(HOST)
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
    """Its first channel is not 0, so that it does not know on which the program is to run."""
    with listening(tmp_path, RIGHT, 3, 0) as (host, served):
        session = ssh.verified(host, 20, lambda _: None, lambda user: f"sh -c {user}")
        try:
            with session.channel(time.monotonic() + 20, "sh -c u"):
                assert served[-1].heard.wait(20)
        finally:
            session.close()
    assert [sshd.asked for sshd in served] == [[], [b"sh -c u"]]


def test_a_key_that_is_refused_is_not_tried_again(tmp_path: Path) -> None:
    with listening(tmp_path, WRONG, 0, 0) as (host, served), pytest.raises(Unreachable, match="was refused"):
        ssh.verified(host, 20, lambda _: None, lambda _: "")
    assert sum(bool(sshd.tried) for sshd in served) == 1


def test_a_login_that_is_ended_from_here_is_not_tried_again(tmp_path: Path) -> None:
    """As Ctrl-C does it: the server has been asked for the key, and has not answered."""
    aborts: list[Callable[[], None]] = []
    with listening(tmp_path, RIGHT, 0, 0) as (host, served):
        Sshd.patience.clear()
        Sshd.asked_for_a_key.clear()
        try:
            threading.Thread(target=lambda: (Sshd.asked_for_a_key.wait(20), aborts[0]()), daemon=True).start()
            with pytest.raises(Unreachable):
                ssh.verified(host, 20, aborts.append, lambda _: "sh")
        finally:
            Sshd.patience.set()
    assert (len(aborts), sum(bool(sshd.tried) for sshd in served)) == (1, 1)
