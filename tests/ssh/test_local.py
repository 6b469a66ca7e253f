"""A host that is this machine: which machine it is, and what cannot be provisioned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rigwright.core.command import command
from rigwright.core.errors import HostError, InputError
from rigwright.core.machine_identity import MachineIdentity
from rigwright.inventory.model import LOCAL_MACHINE, Host
from rigwright.ssh import local
from rigwright.ssh.local import Local

HERE = MachineIdentity("4c4c4544-0042-3510-8056-b3c04f4e5931", "MS1A2B3C4", "0123456789abcdef0123456789abcdef")


def host(**variables: object) -> Host:
    """Returns a host that is this machine."""
    return Host("here", ("all",), {"ansible_connection": "local", **variables}, "hosts.yml:3")


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
