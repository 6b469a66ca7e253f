"""An ssh server of paramiko on the loopback that runs programs with the shell of this machine."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko

from rigwright.inventory.model import Host
from tests.ssh import servers


class ShellServer(paramiko.ServerInterface):
    """Lets one key log in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host_key, self.key = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
        self.port = 0
        self.key_file, self.known_hosts = folder / "key", folder / "known"

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002
        return paramiko.AUTH_SUCCESSFUL if key == self.key else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._run, args=(channel, command.decode()), daemon=True).start()
        return True

    def _run(self, channel: paramiko.Channel, program: str) -> None:
        pipe = subprocess.PIPE
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

    with servers.serving(lambda: server.host_key, lambda _transport, _opened: server) as server.port:
        key = server.host_key
        server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {key.get_name()} {key.get_base64()}\n")
        yield server
