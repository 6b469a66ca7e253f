"""A login uses the key that the inventory or ssh_config names, and no other; no key file that others may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from rigwright.core.errors import Unreachable
from tests.security.ssh_machine import Agent, Machine, key_file, login, machine

HOST, NAMED, HELD, USUAL = (paramiko.ECDSAKey.generate() for _ in range(4))
RSA = paramiko.RSAKey.generate(2048)


@pytest.fixture
def there(home: Path) -> Iterator[Machine]:
    """Yields a machine with a known host key that lets nobody log in."""
    with machine(HOST) as found:
        (home / ".ssh" / "known_hosts").write_text(found.line(HOST))
        key_file(home / "named", NAMED)
        yield found


@pytest.fixture
def agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Yields an agent that holds the key HELD."""
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "agent"))
    with Agent(HELD).on(home / "agent") as found:
        yield found


def offers(there: Machine, **variables: str) -> list[str]:
    """Returns the names of the keys that a refused login offered."""
    names = {key.asbytes(): name for name, key in (("named", NAMED), ("held", HELD), ("usual", USUAL), ("rsa", RSA))}
    with pytest.raises(Unreachable):
        login(there.host(**variables))
    return list(dict.fromkeys(names[blob] for blob in there.offered))


NAMED_IN = {
    "the inventory": ("", True),
    "the inventory, and another in ssh_config": ("IdentityFile ~/.ssh/id_ecdsa\n", True),
    "ssh_config, with IdentitiesOnly": ("IdentityFile ~/named\nIdentitiesOnly yes\n", False),
}


@pytest.mark.parametrize("name", NAMED_IN)
def test_no_other_key_than_the_named_one(home: Path, there: Machine, agent: Agent, name: str) -> None:
    """The keys of the agent and the usual files stay here, also when the named key is refused."""
    config, by_inventory = NAMED_IN[name]
    (home / ".ssh" / "config").write_text(config)
    key_file(home / ".ssh" / "id_ecdsa", USUAL)
    variables = {"ansible_ssh_private_key_file": "~/named"} if by_inventory else {}
    assert offers(there, **variables) == ["named"]
    assert 13 not in agent.requests


@pytest.mark.parametrize(
    ("config", "offered"),
    [
        ("", ["held", "rsa", "usual"]),
        ("IdentityFile ~/named\n", ["named", "held"]),
        ("IdentitiesOnly yes\n", ["rsa", "usual"]),
        ("IdentityAgent none\n", ["rsa", "usual"]),
        ("IdentityAgent none\nIdentityFile ~/none\n", []),
        ("IdentityFile none\n", ["held"]),
    ],
)
def test_the_keys_are_those_of_openssh(
    home: Path, there: Machine, agent: Agent, config: str, offered: list[str]
) -> None:
    """Without a named key: the agent's, then the usual files; IdentityFile replaces the usual files."""
    key_file(home / ".ssh" / "id_ecdsa", USUAL)
    key_file(home / ".ssh" / "id_rsa", RSA)
    (home / ".ssh" / "config").write_text(config)
    assert offers(there) == offered
    assert bool(agent.requests) is ("held" in offered)


def test_another_agent(home: Path, there: Machine, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".ssh" / "config").write_text("IdentityAgent ~/second\n")
    with Agent(USUAL).on(home / "second"):
        assert offers(there) == ["usual"]
    monkeypatch.setenv("OTHER", str(home / "agent"))
    (home / ".ssh" / "config").write_text("IdentityAgent $OTHER\n")
    there.offered.clear()
    assert offers(there) == ["held"]
    assert agent.requests


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o601])
def test_a_key_file_that_others_may_use(home: Path, there: Machine, mode: int) -> None:
    os.chmod(home / "named", mode)
    with pytest.raises(Unreachable) as caught:
        login(there.host(ansible_ssh_private_key_file="~/named"))
    assert caught.value.found == f"other users may use the ssh key (its mode is {mode:04o}): {home}/named"
    assert caught.value.fix == f"chmod 600 {home}/named"
    assert there.offered == []
    os.chmod(home / "named", 0o600)
    assert offers(there, ansible_ssh_private_key_file="~/named") == ["named"]


def test_a_usual_file_that_others_may_use_is_left_out_and_named(home: Path, there: Machine) -> None:
    os.chmod(key_file(home / ".ssh" / "id_rsa", RSA), 0o644)
    key_file(home / ".ssh" / "id_ecdsa", USUAL)
    with pytest.raises(Unreachable) as caught:
        login(there.host())
    assert there.offered == [USUAL.asbytes()] * len(there.offered)
    assert f"chmod 600 {home}/.ssh/id_rsa" in caught.value.fix


def _encrypted(path: Path, public: bool) -> None:
    NAMED.write_private_key_file(str(path), "a passphrase")
    if public:
        path.with_name("named.pub").write_text(f"{NAMED.get_name()} {NAMED.get_base64()} me\n")


def _only_public(path: Path, _public: bool) -> None:
    path.unlink()
    path.with_name("named.pub").write_text(f"{NAMED.get_name()} {NAMED.get_base64()} me\n")


@pytest.mark.parametrize(
    ("prepare", "public", "config"),
    [
        (_encrypted, True, "IdentityFile ~/named\n"),
        (_only_public, True, "IdentityFile ~/named.pub\n"),
        (_only_public, True, "IdentityFile ~/named\n"),
    ],
)
def test_the_agent_signs_for_the_named_key_only(
    home: Path, there: Machine, agent: Agent, prepare: Callable[[Path, bool], None], public: bool, config: str
) -> None:
    """The agent holds the named key, which is encrypted or not on this machine, and another one before it."""
    prepare(home / "named", public)
    (home / ".ssh" / "config").write_text(f"{config}IdentitiesOnly yes\n")
    agent.keys = (HELD, NAMED)
    assert offers(there) == ["named"]
    agent.keys = (HELD,)
    there.offered.clear()
    assert offers(there) == []


def test_an_encrypted_key_that_no_agent_holds(home: Path, there: Machine) -> None:
    _encrypted(home / "named", False)
    with pytest.raises(Unreachable) as caught:
        login(there.host(ansible_ssh_private_key_file="~/named"))
    assert (caught.value.found, caught.value.fix) == (
        f"the ssh key is encrypted: {home}/named", f"ssh-add {home}/named")  # fmt: skip


@pytest.mark.parametrize(
    "content", [b"", b"no key", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", b"\x00" * 99, b"x" * 2_000_000]
)
def test_a_file_that_is_no_key(home: Path, there: Machine, content: bytes) -> None:
    (home / "named").write_bytes(content)
    with pytest.raises(Unreachable, match=r"the ssh key (cannot be understood|is larger than 1 MiB)"):
        login(there.host(ansible_ssh_private_key_file="~/named"))


def test_each_kind_of_key_logs_in(home: Path) -> None:
    """As OpenSSH and OpenSSL write them; each is offered once."""
    import subprocess

    for kind in ("ed25519", "ecdsa", "rsa", "rsa -m PEM", "ecdsa -m PEM"):
        file = home / kind.replace(" ", "_")
        subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", file, "-t", *kind.split()], check=True)
        key = paramiko.PKey.from_path(file)
        with machine(HOST, [key]) as found:
            (home / ".ssh" / "known_hosts").write_text(found.line(HOST))
            login(found.host(ansible_ssh_private_key_file=str(file)))
            assert set(found.offered) == {key.asbytes()}
