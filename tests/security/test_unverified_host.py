"""Nothing is sent to a host or gateway before its host key is accepted: no user, no key, no password, no question to
the agent."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from rigwright.core.errors import InputError, Unreachable
from rigwright.core.secrets import Secret
from rigwright.inventory.model import Host
from rigwright.ssh import connect, route
from rigwright.ssh.transport import Ssh
from tests.security.ssh_machine import Agent, Machine, key_file, login, machine

KEY, OTHER, MINE, JUMP = (paramiko.ECDSAKey.generate() for _ in range(4))
RSA = paramiko.RSAKey.generate(2048)


@pytest.fixture
def agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Yields an agent with the key of the user, which ssh_config wants forwarded."""
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "agent"))
    key_file(home / ".ssh" / "id_ecdsa", MINE)
    (home / ".ssh" / "config").write_text("ForwardAgent yes\nStrictHostKeyChecking no\nSendEnv *\nSetEnv A=b\n")
    with Agent(MINE).on(home / "agent") as found:
        yield found


def known(home: Path, state: str, there: Machine) -> None:
    """Writes the known_hosts of a state in which the host key KEY of the machine is not accepted."""
    lines = {
        "no key is known": "",
        "another key": there.line(OTHER),
        "another kind of key": there.line(RSA),
        "another port": there.line(KEY, name="127.0.0.1"),
        "an authority": there.line(KEY, "@cert-authority", "*"),
        "revoked": there.line(KEY) + there.line(KEY, "@revoked", "*"),
        "a cut line": there.line(KEY)[:60] + "\n",
    }
    (home / ".ssh" / "known_hosts").write_text(lines[state])


STATES = [
    "no key is known", "another key", "another kind of key", "another port", "an authority", "revoked", "a cut line",
]  # fmt: skip


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("named", [True, False])
def test_nothing_is_sent_to_a_host(home: Path, agent: Agent, state: str, named: bool) -> None:
    """StrictHostKeyChecking no, which ssh_config says, changes nothing."""
    with machine(KEY, [MINE]) as there:
        known(home, state, there)
        variables: dict[str, Any] = {"ansible_become_password": Secret("the sudo password")}
        if named:
            variables["ansible_ssh_private_key_file"] = str(home / ".ssh" / "id_ecdsa")
        ssh = Ssh(there.host(**variables))
        with pytest.raises(Unreachable):
            ssh.connect(20)
        if state != "revoked":
            assert [offered.key for offered in connect.offered_keys(there.host(), 20)] == [KEY]
        assert there.clients >= 1
        assert (there.users, there.offered, there.requests, agent.requests) == ([], [], [], [])


@pytest.mark.parametrize("state", STATES)
def test_nothing_is_sent_to_a_gateway(home: Path, agent: Agent, state: str) -> None:
    """And nobody dials the host."""
    with machine(KEY, [MINE]) as jump, machine(OTHER, [MINE]) as there:
        known(home, state, jump)
        with (home / ".ssh" / "config").open("a") as config:
            config.write(f"Host far\n  HostName 127.0.0.1\n  ProxyJump 127.0.0.1:{jump.port}\n")
        with pytest.raises(Unreachable) as caught:
            login(there.host(ansible_host="far"))
        assert "its gateway" in caught.value.where
        assert jump.clients == 1
        assert (jump.users, jump.requests, there.clients, agent.requests) == ([], [], 0, [])


@pytest.mark.usefixtures("agent")
def test_nothing_is_sent_to_a_host_behind_a_gateway(home: Path) -> None:
    with machine(JUMP, [MINE]) as jump, machine(KEY, [MINE]) as there:
        (home / ".ssh" / "known_hosts").write_text(jump.line(JUMP))
        with (home / ".ssh" / "config").open("a") as config:
            config.write(f"Host far\n  HostName 127.0.0.1\n  ProxyJump 127.0.0.1:{jump.port}\n")
        with pytest.raises(Unreachable, match="the host key is not known"):
            login(there.host(ansible_host="far"))
        assert jump.requests == ["forward"]
        assert (there.clients, there.users) == (1, [])


@pytest.mark.parametrize("through", [True, False])
def test_no_agent_is_forwarded(home: Path, agent: Agent, through: bool) -> None:
    """Nor a variable of the environment; a host gets its program, and a gateway the address of the host."""
    with machine(JUMP, [MINE]) as jump, machine(KEY, [MINE]) as there:
        (home / ".ssh" / "known_hosts").write_text(jump.line(JUMP) + there.line(KEY))
        if through:
            with (home / ".ssh" / "config").open("a") as config:
                config.write(f"Host far\n  HostName 127.0.0.1\n  ProxyJump 127.0.0.1:{jump.port}\n")
        login(there.host(ansible_host="far" if through else "127.0.0.1"))
        assert agent.requests
        assert {*jump.requests} <= {"forward"}
        assert {*there.requests} <= {"session", "sudo -n sh"}


def test_a_user_id_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4242")

    monkeypatch.setattr(getpass, "getuser", nobody)
    with pytest.raises(InputError, match="runs as a user without a name"):
        route.to(Host("box", (), {}))
