"""`@revoked`, `@cert-authority` and RevokedHostKeys have the meaning that OpenSSH gives them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import paramiko
import pytest
from paramiko.hostkeys import HostKeys

from rigwright.core.errors import Unreachable
from tests.cli.run_command import run_command
from tests.security.ssh_machine import Agent, Machine, key_file, login, machine

KEY, MINE, OTHER = (paramiko.ECDSAKey.generate() for _ in range(3))


def known(home: Path, *lines: str, name: str = "known_hosts") -> Path:
    file = home / ".ssh" / name
    file.write_text("".join(lines))
    return file


def refused(home: Path, there: Machine, **variables: str) -> Unreachable:
    """Returns the error of a login; the server got no user, and the agent was asked nothing."""
    agent = Agent(MINE)
    with agent.on(home / "agent"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSH_AUTH_SOCK", str(home / "agent"))
        with pytest.raises(Unreachable) as caught:
            login(there.host(**variables))
    (home / "agent").unlink()
    assert (there.users, agent.requests) == ([], [])
    return caught.value


@pytest.mark.parametrize("name", ["", "*", "[127.0.0.?]:*", "other,[127.0.0.1]:PORT", "hashed", "[127.0.0.1]:*,!other"])
@pytest.mark.parametrize("first", [True, False])
def test_a_revoked_key_is_refused(home: Path, name: str, first: bool) -> None:
    """Wherever the line is, and also if another line records the same key."""
    with machine(KEY, [MINE]) as there:
        address = f"[127.0.0.1]:{there.port}"
        shown = HostKeys.hash_host(address) if name == "hashed" else name.replace("PORT", str(there.port))
        lines = [there.line(KEY, "@revoked", shown), there.line(KEY)]
        file = known(home, *(lines if first else reversed(lines)))
        error = refused(home, there)
    fingerprint = f"{KEY.get_name()} {KEY.fingerprint}"
    assert error.found == f"the host key is revoked ({file}:{1 if first else 2}): {fingerprint}"


@pytest.mark.parametrize("field", ["[127.0.0.1]:1", "*.example.org", "[127.0.0.1]:*,![127.0.0.1]:PORT"])
def test_a_line_for_another_host_revokes_nothing(home: Path, field: str) -> None:
    with machine(KEY, [MINE]) as there:
        lines = [
            there.line(KEY, "@revoked", field.replace("PORT", str(there.port))),
            there.line(OTHER, "@revoked", "*"),
        ]
        known(home, *lines, there.line(KEY))
        login(there.host(ansible_ssh_private_key_file=str(key_file(home / "key", MINE))))


def test_a_second_file_revokes_too(home: Path) -> None:
    with machine(KEY, [MINE]) as there:
        known(home, there.line(KEY))
        second = known(home, there.line(KEY, "@revoked", "*"), name="known_hosts2")
        assert f"({second}:1)" in refused(home, there).found
        extra = second.rename(home / "more")
        assert f"({extra}:1)" in refused(home, there, ssh_known_hosts=str(extra)).found


def test_trust_records_no_revoked_key(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with machine(KEY) as there:
        known(home, there.line(KEY, "@revoked", "*"))
        (home / "hosts.yml").write_text(
            f"all:\n  hosts:\n    box: {{ansible_host: 127.0.0.1, ansible_port: {there.port}}}\n"
        )
        assert run_command("trust", host="box", inventory=str(home / "hosts.yml"), yes=True) == 3
    assert "the host key is revoked" in capsys.readouterr().err
    assert not (home / ".config").exists()


def test_an_authority_makes_no_plain_key_known(home: Path) -> None:
    """OpenSSH accepts certificates by it, and no key, not even its own. The message says that they are not
    supported."""
    with machine(KEY, [MINE]) as there:
        file = known(home, there.line(KEY, "@cert-authority", "*"))
        error = refused(home, there)
    assert error.found == "the host key is not known"
    assert f"certificates of an authority ({file}:1) are not supported" in error.expected


@pytest.mark.parametrize("as_list", [True, False])
def test_revoked_host_keys_of_ssh_config(home: Path, as_list: bool) -> None:
    """The file is a list of public keys, or what `ssh-keygen -k` makes; without it no key is allowed, as with
    OpenSSH."""
    public = home / "host.pub"
    public.write_text(f"{KEY.get_name()} {KEY.get_base64()} host\n")
    listed = public
    if not as_list:
        listed = home / "revoked.krl"
        subprocess.run(["ssh-keygen", "-q", "-k", "-f", listed, public], check=True)
    with machine(KEY, [MINE]) as there:
        known(home, there.line(KEY))
        for file, found in ((listed, f"{listed} revokes it"), (home / "none", "cannot be read")):
            (home / ".ssh" / "config").write_text(f"RevokedHostKeys {file}\n")
            assert found in refused(home, there).found
        public.write_text(f"{OTHER.get_name()} {OTHER.get_base64()} other\n")
        (home / ".ssh" / "config").write_text(f"RevokedHostKeys {public}\n")
        login(there.host(ansible_ssh_private_key_file=str(key_file(home / "key", MINE))))
