"""The error of a connection names the host or the gateway that failed, and what to type."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from rigwright.core.errors import Unreachable
from rigwright.inventory.model import Host
from rigwright.ssh import connect, known_hosts
from tests.ssh.servers import server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a home folder without a key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir()
    return tmp_path


@pytest.fixture
def unused() -> Iterator[int]:
    """Yields a port on which no program listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def _refused(**variables: Any) -> Unreachable:
    host = Host("box", (), {"ansible_host": "127.0.0.1", "ansible_user": "ada", **variables}, "hosts.yml:3")
    with pytest.raises(Unreachable) as caught:
        connect.open_session(host, 10, lambda _abort: None)
    return caught.value


@pytest.mark.parametrize(
    ("jump", "found"), [("localhost:{unused}", "refused"), ("jump.invalid:{unused}", "the name jump.invalid cannot")]
)
def test_a_gateway_that_does_not_answer(home: Path, unused: int, jump: str, found: str) -> None:
    named = jump.format(unused=unused)
    (home / ".ssh" / "config").write_text(f"Host 127.0.0.1\n  ProxyJump eve@{named}\n")
    error = _refused()
    assert error.where == f"box: its gateway ({named})"
    assert found in error.found
    assert "the ProxyJump of 127.0.0.1 in ~/.ssh/config" in error.fix
    assert "ansible_" not in error.fix


def test_a_login_without_a_key() -> None:
    key = paramiko.ECDSAKey.generate()
    with server(key) as port:
        known_hosts.trust(f"[127.0.0.1]:{port}", key)
        error = _refused(ansible_port=port)
    assert error.found == "no ssh key to log in with as ada"
    assert error.fix == f"ssh-keygen -t ed25519, if you have no key; then ssh-copy-id -p {port} ada@127.0.0.1"


def test_a_host_without_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def unroutable(*_words: Any) -> None:
        raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))

    monkeypatch.setattr(connect, "_dial", unroutable)
    error = _refused()
    assert error.found == "no connection (No route to host)"
    assert "ansible_host (hosts.yml:3)" in error.fix
    assert "ping 127.0.0.1" in error.fix
