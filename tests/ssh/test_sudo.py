"""The errors of a script that sudo did not run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rigwright.core.errors import HostError, Unreachable
from rigwright.core.secrets import Secret
from rigwright.inventory.model import Host
from rigwright.ssh import channel_io, sudo

HOST = Host("servbadge", (), {})


def test_a_password_is_needed() -> None:
    assert sudo.wants_password(b"sudo: a password is required\n", HOST)
    assert not sudo.wants_password(b"ada is not in the sudoers file, says sudo\n", HOST)


def test_the_message_without_sudo() -> None:
    with pytest.raises(HostError) as caught:
        sudo.wants_password(b"sh: 1: sudo: not found\n", HOST)
    assert str(caught.value) == (
        "servbadge: sh: 1: sudo: not found\n"
        "  expected: sudo on the host, or a login as root\n"
        "  fix:      apt-get install sudo, as root"
    )


def test_the_message_without_an_answer() -> None:
    with pytest.raises(Unreachable) as caught:
        sudo.wants_password(b"", HOST)
    assert str(caught.value) == (
        "servbadge: the connection ended before an answer came: the host rebooted, was switched off, "
        "or lost its network\n"
        "  expected: an answer\n"
        "  fix:      when the host is up again: the same command continues"
    )


def test_the_password_is_of_the_user_of_the_inventory() -> None:
    """The error names the user and, when the inventory has the password, its place."""
    assert "usermod -a -G sudo ada," in sudo.refusal(_ada(), b"no\n", "x").fix
    with pytest.raises(HostError) as caught:
        _typed(_ada(ansible_become_password=Secret("no")))
    assert (caught.value.expected, caught.value.fix) == ("the password of ada on the host", "correct it: hosts.yml:9")


def _ada(**variables: object) -> Host:
    origins = {"ansible_become_password": "hosts.yml:9"}
    return Host("box", (), {"ansible_user": "ada", **variables}, "hosts.yml:3", origins)


def _typed(host: Host) -> None:
    """Starts a root shell on a channel where sudo asks twice, as after a wrong password."""
    marker = b"rigwright-n-password"
    channel: Any = SimpleNamespace(exec_command=lambda _line: None, sendall=lambda _bytes: None)
    answers = iter([(b"", marker), (b"", marker + b"Sorry, try again.\n")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel_io, "until", lambda *_words, **_options: next(answers))
        sudo.start_root_shell(channel, host, host.variables["ansible_become_password"], None, "n", 0.0)
