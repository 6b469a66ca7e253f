"""The errors of a script that sudo did not run."""

from __future__ import annotations

import pytest

from rigwright.core.errors import HostError, Unreachable
from rigwright.inventory.model import Host
from rigwright.ssh import sudo

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
        "servbadge: the connection ended before an answer came (no message)\n"
        "  expected: an answer\n"
        "  fix:      run the same command again"
    )
