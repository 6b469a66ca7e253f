"""An ssh server and an ssh-agent on this machine, which write down everything that they are asked."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko

from rigwright.inventory.model import Host
from rigwright.ssh import connect
from tests.ssh import servers


@dataclass
class Machine(paramiko.ServerInterface):
    """A machine that lets the keys `accepts` log in, forwards connections, and answers a program with nothing."""

    accepts: Collection[paramiko.PKey]
    port: int = 0
    clients: int = 0
    """The number of connections, and of those after which the client sent nothing but a key exchange."""
    users: list[str] = field(default_factory=list)
    """The user of each request to log in."""
    offered: list[bytes] = field(default_factory=list)
    """The public keys with which somebody asked to log in."""
    requests: list[str] = field(default_factory=list)
    """What was asked after the login."""
    transports: list[paramiko.Transport] = field(default_factory=list)

    def get_allowed_auths(self, username: str) -> str:
        self.users.append(username)
        return "publickey,password"

    def check_auth_none(self, username: str) -> int:
        self.users.append(username)
        return paramiko.AUTH_FAILED

    def check_auth_password(self, username: str, password: str) -> int:
        self.users.append(username)
        self.requests.append(f"password {password}")
        return paramiko.AUTH_FAILED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.users.append(username)
        self.offered.append(key.asbytes())
        return paramiko.AUTH_SUCCESSFUL if key in self.accepts else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        self.requests.append(kind)
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:  # noqa: ARG002
        self.requests.append(command.decode())
        return True

    def check_channel_forward_agent_request(self, channel: paramiko.Channel) -> bool:  # noqa: ARG002
        self.requests.append("agent forwarding")
        return True

    def check_channel_env_request(self, channel: paramiko.Channel, name: bytes, value: bytes) -> bool:  # noqa: ARG002
        self.requests.append(f"env {name.decode()}")
        return True

    def check_channel_direct_tcpip_request(self, chanid: int, origin: Any, destination: tuple[str, int]) -> int:  # noqa: ARG002
        self.requests.append("forward")
        return servers.forward(self.transports[-1], destination)

    def host(self, **variables: Any) -> Host:
        """This machine in an inventory."""
        given = {"ansible_host": "127.0.0.1", "ansible_port": self.port, "ansible_user": "ada", **variables}
        return Host("box", (), {name: value for name, value in given.items() if value is not None}, "hosts.yml:3")

    def line(self, key: paramiko.PKey, marker: str = "", name: str = "") -> str:
        """A line of known_hosts with a key of this machine."""
        return f"{marker} {name or f'[127.0.0.1]:{self.port}'} {key.get_name()} {key.get_base64()}\n".lstrip()


@contextlib.contextmanager
def machine(
    host_key: paramiko.PKey,
    accepts: Collection[paramiko.PKey] = (),
    configure: Callable[[Any], None] = lambda _transport: None,
) -> Iterator[Machine]:
    """Yields a machine. `configure` changes the server's side of a connection before it begins."""
    found = Machine(accepts)

    def interface(transport: paramiko.Transport, _opened: socket.socket) -> Machine:
        found.clients += 1
        found.transports.append(transport)
        return found

    with servers.serving(lambda: host_key, interface, configure) as found.port:
        yield found


class Agent:
    """An ssh-agent on a socket. `requests` has the kind of every request: 11 asks for its keys, 13 for a signature."""

    def __init__(self, *keys: paramiko.PKey) -> None:
        self.keys = keys
        self.requests: list[int] = []

    @contextlib.contextmanager
    def on(self, path: Path) -> Iterator[Agent]:
        """Listens on a socket of that path."""
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()

            def serve() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        threading.Thread(target=self._answer, args=(listening.accept()[0],), daemon=True).start()

            threading.Thread(target=serve, daemon=True).start()
            yield self

    def _answer(self, opened: socket.socket) -> None:
        with contextlib.suppress(OSError), opened, opened.makefile("rb") as incoming:
            while length := incoming.read(4):
                request = paramiko.Message(incoming.read(int.from_bytes(length, "big")))
                kind = request.get_byte()[0]
                self.requests.append(kind)
                answer = paramiko.Message()
                if kind == 11:
                    answer.add_byte(bytes([12]))
                    answer.add_int(len(self.keys))
                    for key in self.keys:
                        answer.add_string(key.asbytes())
                        answer.add_string("a key")
                else:
                    blob, data = request.get_binary(), request.get_binary()
                    (signer,) = (key for key in self.keys if key.asbytes() == blob)
                    answer.add_byte(bytes([14]))
                    answer.add_string(signer.sign_ssh_data(data).asbytes())  # type: ignore[call-arg]
                opened.sendall(len(answer.asbytes()).to_bytes(4, "big") + answer.asbytes())


def login(host: Host) -> Any:
    """Opens and closes a session as a run does; returns it."""
    session = connect.open_session(host, 20, lambda _abort: None, lambda _user: "sudo -n sh")
    session.close()
    return session


def key_file(path: Path, key: paramiko.PKey, password: str | None = None) -> Path:
    """Writes a private key; returns its path."""
    path.parent.mkdir(exist_ok=True, mode=0o700)
    key.write_private_key_file(str(path), password)
    return path
