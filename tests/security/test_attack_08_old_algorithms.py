"""A server that knows only broken algorithms is refused, unless the inventory allows one of them by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import paramiko
import pytest

from rigwright.core.errors import InputError, Unreachable
from rigwright.inventory.model import Host
from rigwright.ssh import algorithms
from rigwright.ssh.transport import Ssh
from tests.security.ssh_machine import key_file, login, machine

KEY = paramiko.ECDSAKey.generate()
RSA = paramiko.RSAKey.generate(2048)


def old(kind: str, name: str) -> Any:
    """Returns a function that makes a server offer one old algorithm of a kind, and no other of that kind."""

    def configure(transport: Any) -> None:
        algorithms.restrict(transport, [name])
        transport._preferred_pubkeys = paramiko.Transport._preferred_pubkeys  # type: ignore[attr-defined]
        if kind == "keys":
            key = algorithms._RsaSha1Key(file_obj=None, key=RSA.key)
            transport.server_key_dict = {"ssh-rsa": key}
        setattr(transport, f"_preferred_{kind}", (name,))

    return configure


def of_all() -> list[tuple[str, str]]:
    return [(kind, name) for name, kind in algorithms.legacy().items()]


def test_what_is_old() -> None:
    known = algorithms.legacy()
    for name in (
        "diffie-hellman-group1-sha1", "diffie-hellman-group14-sha1", "diffie-hellman-group-exchange-sha256",
        "3des-cbc", "aes128-cbc", "aes256-cbc", "hmac-sha1", "hmac-md5", "hmac-md5-96", "hmac-sha1-96", "ssh-rsa",
    ):  # fmt: skip
        assert name in known
    assert not [name for name in known if re.search("ctr|gcm|hmac-sha2|rsa-sha2|group14-sha2|25519|nistp", name)]


@pytest.mark.parametrize(("kind", "name"), of_all())
def test_it_is_refused_unless_it_is_allowed_by_name(home: Path, kind: str, name: str) -> None:
    mine = key_file(home / "key", KEY)
    host_key = RSA if kind == "keys" else KEY
    with machine(host_key, [KEY], old(kind, name)) as there:
        (home / ".ssh" / "known_hosts").write_text(there.line(host_key))
        host = there.host(ansible_ssh_private_key_file=str(mine))
        with pytest.raises(Unreachable, match="no algorithm in common") as caught:
            login(host)
        assert "ssh_legacy_algorithms" in caught.value.fix
        assert there.users == []
        if name == "diffie-hellman-group-exchange-sha256":
            return  # paramiko's server needs a file of primes for it
        allowed = there.host(ansible_ssh_private_key_file=str(mine), ssh_legacy_algorithms=[name])
        assert login(allowed).legacy == [name]
        ssh = Ssh(allowed)
        ssh.connect(20)
        ssh.close()
        assert ssh.warning == f"warning: the connection uses {name}, which ssh_legacy_algorithms allows"


def test_a_modern_server_is_not_asked_for_what_is_allowed(home: Path) -> None:
    mine = key_file(home / "key", KEY)
    with machine(KEY, [KEY]) as there:
        (home / ".ssh" / "known_hosts").write_text(there.line(KEY))
        names = list(algorithms.legacy())
        assert login(there.host(ansible_ssh_private_key_file=str(mine), ssh_legacy_algorithms=names)).legacy == []


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (["diffie-hellman-group1-sha"], "did you mean 'diffie-hellman-group1-sha1'?"),
        (["none"], "'none' is no old algorithm"),
        (["arcfour"], "'arcfour' is no old algorithm"),
        ("hmac-sha1", "ssh_legacy_algorithms is 'hmac-sha1'"),
        ([1], "ssh_legacy_algorithms is '[1]'"),
    ],
)
def test_a_name_that_is_none(value: Any, found: str) -> None:
    with pytest.raises(InputError) as caught:
        algorithms.allowed_for(Host("box", (), {"ssh_legacy_algorithms": value}, "hosts.yml:3"))
    assert (caught.value.where, found in caught.value.found) == ("hosts.yml:3", True), caught.value
