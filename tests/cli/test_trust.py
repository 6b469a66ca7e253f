"""`invoke trust` with ssh servers on the loopback: a new key, a changed key, and a host behind a gateway."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from rigwright.core.errors import Unreachable
from rigwright.history import History
from rigwright.inventory.model import Host
from rigwright.ssh import connect, known_hosts
from tests.cli.run_command import run_command
from tests.history.test_history import run_of
from tests.ssh.servers import server

NEW, OLD, JUMP = (paramiko.ECDSAKey.generate() for _ in range(3))
TODAY = datetime.date.today()


@pytest.fixture
def port() -> Iterator[int]:
    """Yields the port of a server that offers the key NEW."""
    with server(NEW) as number:
        yield number


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns an empty home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


def _trust(home: Path, port: int, address: str = "127.0.0.1") -> int:
    inventory = home / "hosts.yml"
    inventory.write_text(f"gpu:\n  hosts:\n    box: {{ansible_host: {address}, ansible_port: {port}}}\n")
    return run_command("trust", host="box", inventory=str(inventory), yes=True)


def _host(port: int) -> Host:
    return Host("box", (), {"ansible_host": "127.0.0.1", "ansible_port": port})


def test_a_key_is_recorded_once(home: Path, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert _trust(home, port) == 0
    out = capsys.readouterr().out
    assert f"box ([127.0.0.1]:{port}) offers {known_hosts.fingerprint(NEW)}" in out
    assert "ssh-keygen -lf /etc/ssh/ssh_host_ecdsa_key.pub" in out
    assert "Another key" not in out
    own = home / ".config/rigwright/known_hosts"
    assert f"recorded in {own}" in out
    assert _trust(home, port) == 0
    assert capsys.readouterr().out == f"box ([127.0.0.1]:{port}) offers the key that is on record: {own}:1\n"


def test_a_key_that_trust_recorded_is_replaced(home: Path, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"[127.0.0.1]:{port}"
    own = known_hosts.trust(name, OLD)
    (offered,) = connect.offered_keys(_host(port), 10)
    assert (offered.known, offered.blocking) == (None, ())
    assert _trust(home, port) == 0
    out = capsys.readouterr().out
    assert f"Another key is on record for {name}: {known_hosts.fingerprint(OLD)}\n  {own}:1, since {TODAY}\n" in out
    assert [record.key for record in known_hosts.records_of(own, name)] == [NEW]


@pytest.mark.parametrize(("status", "shown"), [("ok", True), ("unreachable", False)])
def test_the_last_run_that_reached_it(
    home: Path, port: int, status: str, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(home / "history.sqlite"))
    document = run_of(3, status=status)
    document["hosts"] = {"box": document["hosts"]["servbadge"]}
    with History.open() as past:
        past.record(document)
    known_hosts.trust(f"[127.0.0.1]:{port}", OLD)
    assert _trust(home, port) == 0
    assert ("The last run that reached box: 20" in capsys.readouterr().out) is shown


def test_a_key_of_ssh_counts_first(home: Path, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"[127.0.0.1]:{port}"
    (home / ".ssh").mkdir()
    file = home / ".ssh" / "known_hosts"
    file.write_text(f"# mine\n{name} {OLD.get_name()} {OLD.get_base64()}\n")
    assert _trust(home, port) == 2
    out = capsys.readouterr().out
    assert f"{file}:2, in a file that last changed on {TODAY}" in out
    assert f"The other key still counts before it. This removes it:\n    ssh-keygen -R '{name}' -f {file}\n" in out
    file.write_text("")
    assert _trust(home, port) == 0


@pytest.mark.parametrize("by_ssh", [True, False])
def test_the_advice_names_the_file_that_counts(home: Path, port: int, by_ssh: bool) -> None:
    name = f"[127.0.0.1]:{port}"
    file = home / ".ssh" / "known_hosts"
    file.parent.mkdir()
    if by_ssh:
        file.write_text(f"{name} {OLD.get_name()} {OLD.get_base64()}\n")
    else:
        file = known_hosts.trust(name, OLD)
    with pytest.raises(Unreachable) as caught:
        connect.open_session(_host(port), 10, lambda _abort: None)
    assert f"{file}:1" in caught.value.expected
    assert (f"ssh-keygen -R '{name}' -f {file}, then" in caught.value.fix) is by_ssh
    assert "invoke trust --host box" in caught.value.fix


def test_a_host_behind_a_gateway(home: Path, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The key of the gateway is recorded first; then the host is asked through it."""
    (home / ".ssh").mkdir()
    login = home / ".ssh" / "id_ecdsa"
    paramiko.ECDSAKey.generate().write_private_key_file(str(login))
    with server(JUMP) as jump:
        config = f"Host jump\n  HostName 127.0.0.1\n  Port {jump}\n  User a\n  IdentityFile {login}\n"
        (home / ".ssh" / "config").write_text(f"{config}Host far\n  HostName 127.0.0.1\n  ProxyJump jump\n")
        assert _trust(home, port, "far") == 0
        out = capsys.readouterr().out
        assert f"the gateway [127.0.0.1]:{jump} offers {known_hosts.fingerprint(JUMP)}" in out
        assert f"box ([127.0.0.1]:{port}) offers {known_hosts.fingerprint(NEW)}" in out
        assert _trust(home, port, "far") == 0
        assert "offers the key that is on record" in capsys.readouterr().out
