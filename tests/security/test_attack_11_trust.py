"""The files of known hosts are those of OpenSSH; `trust` goes the way of a login, and tells of a key that changed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from rigwright.core.errors import Unreachable
from rigwright.ssh import connect, known_hosts
from tests.cli.run_command import run_command
from tests.security.ssh_machine import Machine, key_file, login, machine

KEY, OLD, MINE, JUMP = (paramiko.ECDSAKey.generate() for _ in range(4))


@pytest.fixture
def there(home: Path) -> Iterator[Machine]:
    """Yields a machine of which nothing is known."""
    key_file(home / ".ssh" / "id_ecdsa", MINE)
    with machine(KEY, [MINE]) as found:
        yield found


@pytest.mark.parametrize("word", ["none", "NONE"])
def test_none_is_no_file(home: Path, there: Machine, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file `none` in the current folder, which another person may write, makes no key known."""
    monkeypatch.chdir(home)
    for name in ("none", "NONE"):
        (home / name).write_text(there.line(KEY))
    (home / ".ssh" / "config").write_text(f"UserKnownHostsFile {word}\nGlobalKnownHostsFile {word}\n")
    with pytest.raises(Unreachable, match="the host key is not known"):
        login(there.host())
    assert [offered.known for offered in connect.offered_keys(there.host(), 20)] == [None]


@pytest.mark.parametrize(
    "option", ["UserKnownHostsFile ~/one ~/two", "GlobalKnownHostsFile ~/one ~/two", "UserKnownHostsFile ~/two"]
)
def test_several_files(home: Path, there: Machine, option: str) -> None:
    (home / "two").write_text(there.line(KEY))
    (home / ".ssh" / "config").write_text(f"{option}\n")
    login(there.host())


def test_an_alias_replaces_the_name(home: Path, there: Machine) -> None:
    """As with OpenSSH: the key on record for the address does not count, and `trust` records the alias."""
    (home / ".ssh" / "config").write_text("HostKeyAlias rack-7\n")
    (home / ".ssh" / "known_hosts").write_text(there.line(KEY))
    with pytest.raises(Unreachable, match="the host key is not known"):
        login(there.host())
    (home / "hosts.yml").write_text(
        f"all:\n  hosts:\n    box: {{ansible_host: 127.0.0.1, ansible_port: {there.port}}}\n"
    )
    assert run_command("trust", host="box", inventory=str(home / "hosts.yml"), yes=True) == 0
    assert (home / ".config/rigwright/known_hosts").read_text().startswith("rack-7 ecdsa-sha2-nistp256 ")
    login(there.host())


def test_a_changed_key_is_told_and_needs_a_yes(home: Path, there: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"[127.0.0.1]:{there.port}"
    known_hosts.trust(name, OLD)
    with pytest.raises(Unreachable, match="the host key has changed"):
        login(there.host())
    (home / "hosts.yml").write_text(
        f"all:\n  hosts:\n    box: {{ansible_host: 127.0.0.1, ansible_port: {there.port}}}\n"
    )
    assert (
        run_command("trust", host="box", inventory=str(home / "hosts.yml")) == 2
    )  # there is no terminal to say yes at
    assert f"Another key is on record for {name}: {known_hosts.fingerprint(OLD)}" in capsys.readouterr().out
    with pytest.raises(Unreachable, match="the host key has changed"):
        login(there.host())
    assert there.users == []


def test_the_way_of_a_login_is_the_way_of_trust(home: Path, there: Machine) -> None:
    """Both go through the gateway, whose key must be known first; each error names the hop."""
    with machine(JUMP, [MINE]) as jump:
        (home / ".ssh" / "config").write_text(
            f"Host jump\n  HostName 127.0.0.1\n  Port {jump.port}\n  User eve\nHost far\n  HostName 127.0.0.1\n"
            "  ProxyJump jump\n"
        )
        host = there.host(ansible_host="far")
        offered = connect.offered_keys(host, 20)
        first = next(offered)
        assert (first.gateway, first.key) == (True, JUMP)
        with pytest.raises(Unreachable, match=r"the host key of the gateway .* is not known"):
            next(offered)
        with pytest.raises(Unreachable, match=r"the host key of the gateway .* is not known") as caught:
            login(host)
        assert caught.value.where == f"box: its gateway (127.0.0.1:{jump.port})"
        assert (jump.users, there.clients) == ([], 0)
        known_hosts.trust(first.name, first.key)
        assert [(key.gateway, key.key) for key in connect.offered_keys(host, 20)] == [(True, JUMP), (False, KEY)]
        assert there.users == []
        known_hosts.trust(f"[127.0.0.1]:{there.port}", KEY)
        login(host)
        assert ({*jump.users}, {*there.users}) == ({"eve"}, {"ada"})


def test_a_proxy_command_gets_the_values_of_the_inventory(home: Path, there: Machine) -> None:
    """It gets the port and the user, runs without a shell, and ends with the connection; one that fails is named."""
    program = home / "proxy.py"
    program.write_text(
        "import os, socket, sys, threading\n"
        "print(*sys.argv[1:], sep='\\n', file=open(sys.argv[1], 'w'))\n"
        "s = socket.create_connection((sys.argv[2], int(sys.argv[3])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536):\n"
        "        s.sendall(data)\n"
        "    s.shutdown(socket.SHUT_WR)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536):\n"
        "    os.write(1, data)\n"
    )
    (home / ".ssh" / "known_hosts").write_text(there.line(KEY))
    command = f"{sys.executable} {program} {home}/words %h %p %r '$(touch {home}/pwned)'"
    (home / ".ssh" / "config").write_text(f"Host far\n  HostName 127.0.0.1\n  Port 1\n  ProxyCommand {command}\n")
    login(there.host(ansible_host="far"))
    assert (home / "words").read_text().split()[1:4] == ["127.0.0.1", str(there.port), "ada"]
    assert not (home / "pwned").exists()
    (home / ".ssh" / "config").write_text("Host far\n  HostName 127.0.0.1\n  ProxyCommand ls /none/%h\n")
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"no connection through ls, the ProxyCommand .*No such file"):
        login(there.host(ansible_host="far"))
    assert time.monotonic() - began < 60
