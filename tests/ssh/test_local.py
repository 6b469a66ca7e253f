"""A host that is this machine: which machine it is, sudo with a password, and what cannot be provisioned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rigwright.core.command import command
from rigwright.core.errors import HostError, InputError
from rigwright.core.machine_identity import MachineIdentity
from rigwright.core.secrets import Secret
from rigwright.inventory.model import LOCAL_MACHINE, Host
from rigwright.ssh import local
from rigwright.ssh.local import Local

HERE = MachineIdentity("4c4c4544-0042-3510-8056-b3c04f4e5931", "MS1A2B3C4", "0123456789abcdef0123456789abcdef")

SUDO = """#!/bin/sh
# Simulates sudo of a user who needs the password `open sesame` unless -n is given, which is refused.
echo "$*" >>"$SUDO_CALLS"
if [ "$1" = -n ]; then echo "sudo: a password is required" >&2; exit 1; fi
marker=$4; shift 4
for attempt in 1 2 3; do
  printf %s "$marker" >&2
  read -r given || exit 1
  [ "$given" != "open sesame" ] || exec "$@"
  echo "Sorry, try again." >&2
done
exit 1
"""


def host(**variables: object) -> Host:
    """Returns a host that is this machine."""
    return Host("here", ("all",), {"ansible_connection": "local", **variables}, "hosts.yml:3")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a simulated sudo first in PATH for a user who is not root; returns the file of its calls."""
    (tmp_path / "sudo").write_text(SUDO)
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SUDO_CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return tmp_path / "calls"


def test_the_password_is_asked_for_once_and_sent_to_sudo(calls: Path) -> None:
    asked: list[str] = []

    def ask(name: str) -> str:
        asked.append(name)
        return "open sesame"

    transport = Local(host(), ask_password=ask)
    assert transport.run([command("echo", "first")])[0].text == "first\n"
    assert transport.run([command("cat")])[0].text == ""
    assert asked == ["here"]
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["-n", "-k", "-k"]
    assert "sesame" not in calls.read_text()


@pytest.mark.usefixtures("calls")
def test_a_wrong_password_is_sent_once() -> None:
    transport = Local(host(ansible_become_password=Secret("wrong password")))
    with pytest.raises(HostError, match=r"sudo refused the password \(Sorry, try again\.\)") as caught:
        transport.run([command("true")])
    assert caught.value.fix == "correct it: hosts.yml:3"


@pytest.mark.usefixtures("calls")
def test_without_a_terminal_nobody_can_type_the_password() -> None:
    with pytest.raises(HostError, match="sudo asks for a password, and none was given"):
        Local(host()).run([command("true")])


def test_a_machine_without_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostError, match="sudo is not installed here"):
        Local(host()).run([command("true")])


@pytest.mark.parametrize(("platform", "name"), [("win32", "Windows"), ("darwin", "macOS")])
def test_another_system(platform: str, name: str) -> None:
    with pytest.raises(HostError, match=f"this machine runs {name}"):
        local.require_system("here", platform)


def test_the_recorded_machine_is_accepted_and_another_one_refused() -> None:
    reinstalled = MachineIdentity(HERE.product_uuid, HERE.board_serial, "f" * 16 + "0123456789abcdef")
    local.require_machine(host(), HERE, reinstalled)
    other = MachineIdentity("4c4c4544-0042-3510-8056-b3c04f4e5932", "MS9Z8Y7X6", HERE.machine_id_hash)
    with pytest.raises(InputError, match=r"here is another machine .*MS1A2B3C4.* than this one .*MS9Z8Y7X6"):
        local.require_machine(host(), HERE, other)
    with pytest.raises(InputError, match="no identity"):
        local.require_machine(host(), HERE, MachineIdentity())


def test_a_connection_compares_the_machine() -> None:
    identity = "0123456789abcdef0123456789abcdef"
    transport = Local(host(**{LOCAL_MACHINE: {"machine_id_hash": identity}}), root=False)
    with pytest.raises(InputError, match="another machine"):
        transport.connect()
    Local(host(), root=False).connect()


def test_identifiers_are_those_that_are_known() -> None:
    assert local.identifiers(MachineIdentity(machine_id_hash="a1")) == {"machine_id_hash": "a1"}
