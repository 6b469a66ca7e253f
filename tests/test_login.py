"""A login that does not wait for each answer, against a server of paramiko's on a pair of sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
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

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.heard = threading.Event()

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002
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


def test_a_server_that_hangs_up_on_what_is_ahead_of_it_is_asked_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first channel is not 0, so that it does not know on which the program is to run."""
    key = tmp_path / "key"
    RIGHT.write_private_key_file(str(key))
    known = tmp_path / "known_hosts"
    served: list[Sshd] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        known.write_text(f"[127.0.0.1]:{port} {HOST.get_name()} {HOST.get_base64()}\n")

        def serve() -> None:
            for first in (3, 0):
                served.append(Sshd())
                server = paramiko.Transport(listening.accept()[0])
                server.local_version = "SSH-2.0-OpenSSH_9.2p1"  # type: ignore[attr-defined]
                server._channel_counter = first  # type: ignore[attr-defined]
                server.add_server_key(HOST)
                server.start_server(event=threading.Event(), server=served[-1])

        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("HOME", str(tmp_path))
        variables = {
            "ansible_host": "127.0.0.1", "ansible_port": port, "ansible_user": "u",
            "ansible_ssh_private_key_file": str(key), "ssh_known_hosts": str(known),
        }  # fmt: skip
        session = ssh.verified(Host("one", (), variables), 20, lambda _: None, lambda user: f"sh -c {user}")
        try:
            with session.channel(time.monotonic() + 20, "sh -c u"):
                assert served[-1].heard.wait(20)
        finally:
            session.close()
    assert [sshd.asked for sshd in served] == [[], [b"sh -c u"]]


def test_a_key_that_is_refused_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    WRONG.write_private_key_file(str(key))
    known = tmp_path / "known_hosts"
    tried = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        known.write_text(f"[127.0.0.1]:{port} {HOST.get_name()} {HOST.get_base64()}\n")

        def serve() -> None:
            while True:
                server = paramiko.Transport(listening.accept()[0])
                tried.append(server)
                server.add_server_key(HOST)
                server.start_server(event=threading.Event(), server=Sshd())

        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("HOME", str(tmp_path))
        variables = {
            "ansible_host": "127.0.0.1", "ansible_port": port, "ansible_user": "u",
            "ansible_ssh_private_key_file": str(key), "ssh_known_hosts": str(known),
        }  # fmt: skip
        with pytest.raises(Unreachable, match="was refused"):
            ssh.verified(Host("one", (), variables), 20, lambda _: None, lambda _: "sh")
    assert len(tried) == 1
