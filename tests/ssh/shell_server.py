"""An ssh server of paramiko on the loopback that runs programs with the shell of this machine, and counts the logins."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko

from rigwright.inventory.model import Host
from tests.ssh import servers


class ShellServer(paramiko.ServerInterface):
    """Lets one key log in. `programs`: those that were requested. `open`: the sockets of its connections."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host_key, self.key = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
        self.logins = 0
        self.programs: list[str] = []
        self.open: list[socket.socket] = []
        self.port = 0
        self.delay_s = 0.0
        """Before a program begins."""
        self.key_file, self.known_hosts = folder / "key", folder / "known"

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002
        if key != self.key:
            return paramiko.AUTH_FAILED
        self.logins += 1
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.programs.append(command.decode())
        threading.Thread(target=self._run, args=(channel, command.decode()), daemon=True).start()
        return True

    def _run(self, channel: paramiko.Channel, program: str) -> None:
        pipe = subprocess.PIPE
        time.sleep(self.delay_s)
        child = subprocess.Popen(["sh", "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        assert child.stdin
        assert child.stdout
        assert child.stderr
        outputs = ((child.stdout, channel.sendall), (child.stderr, channel.sendall_stderr))
        threads = [threading.Thread(target=_copy, args=pair, daemon=True) for pair in outputs]
        for thread in threads:
            thread.start()
        threading.Thread(target=self._feed, args=(channel, child.stdin), daemon=True).start()
        for thread in threads:
            thread.join()
        code = child.wait()
        with contextlib.suppress(Exception):  # the client has gone
            channel.send_exit_status(code)
            channel.close()

    def _feed(self, channel: paramiko.Channel, stdin: Any) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):
            while data := channel.recv(65536):
                stdin.write(data)
        with contextlib.suppress(OSError):
            stdin.close()

    def record(self, key: paramiko.PKey) -> None:
        """Makes a key the one of this server in known_hosts."""
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {key.get_name()} {key.get_base64()}\n")

    def cut(self) -> None:
        """Closes all connections, as a host does that is switched off and on."""
        for connection in self.open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.open.clear()

    def host(self, **variables: Any) -> Host:
        """This server in an inventory."""
        given = {
            "ansible_host": "127.0.0.1", "ansible_port": self.port, "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.key_file), "ssh_known_hosts": str(self.known_hosts), **variables,
        }  # fmt: skip
        return Host("box", (), given, "hosts.yml:3")


def _copy(source: Any, send: Any) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := source.read(65536):
            send(data)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[ShellServer]:
    """Yields a server whose host key is recorded; its files are in a folder."""
    server = ShellServer(folder)
    server.key.write_private_key_file(str(server.key_file))

    def interface(_transport: paramiko.Transport, opened: socket.socket) -> ShellServer:
        server.open.append(opened)
        return server

    with servers.serving(lambda: server.host_key, interface) as server.port:
        server.record(server.host_key)
        yield server
