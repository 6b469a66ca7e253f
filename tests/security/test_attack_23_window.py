"""Attack 23: a host sent more than the window of its channel allows; it was kept in the memory, and neither the time
limit nor Ctrl-C ended it."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import paramiko
import pytest
from paramiko.common import cMSG_CHANNEL_EXTENDED_DATA

from rigwright.core.command import command
from rigwright.core.errors import HostError, Unreachable
from rigwright.inventory.model import Host
from rigwright.ssh.transport import Ssh

BLOCK = bytes(30_000)


class Flood(paramiko.ServerInterface):
    """A server that answers a program with 64 MiB on its stderr, and does not wait for the window."""

    sent = 0

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:  # noqa: ARG002
        threading.Thread(target=self._flood, args=(channel,), daemon=True).start()
        return True

    def _flood(self, channel: paramiko.Channel) -> None:
        transport = channel.get_transport()
        while transport.is_active() and self.sent < 64 << 20:
            message = paramiko.Message()
            message.add_byte(cMSG_CHANNEL_EXTENDED_DATA)
            message.add_int(channel.remote_chanid)
            message.add_int(1)
            message.add_string(BLOCK)
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # the client has gone
                transport._send_user_message(message)  # type: ignore[attr-defined]
            self.sent += len(BLOCK)


def test_a_flood_ends_the_connection(home: Path) -> None:
    key, own = paramiko.RSAKey.generate(2048), home / ".ssh/id_rsa"
    key.write_private_key_file(str(own))
    flood = Flood()

    def serve() -> None:
        transport = paramiko.Transport(listening.accept()[0])
        transport.add_server_key(key)
        transport.start_server(threading.Event(), flood)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        (home / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")
        threading.Thread(target=serve, daemon=True).start()
        host = Ssh(Host("h", (), {"ansible_host": "127.0.0.1", "ansible_port": port, "ansible_user": "root"}))
        with pytest.raises((Unreachable, HostError)) as caught:
            host.run([command("true")])
        host.close()
    assert len(str(caught.value)) < 1000
    assert flood.sent < 48 << 20
