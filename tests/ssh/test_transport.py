"""A login that the host answers with the name of another user, as cloud images do for root."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rigwright.core.command import command
from rigwright.core.errors import Unreachable
from rigwright.inventory.model import Host
from rigwright.ssh import channel_io
from rigwright.ssh.transport import Ssh

ANSWER = b'Please login as the user "ubuntu" rather than the user "root".\n\n'


@pytest.mark.parametrize("in_errors", [False, True])
def test_another_user_is_named_by_the_host(monkeypatch: pytest.MonkeyPatch, in_errors: bool) -> None:
    @contextlib.contextmanager
    def channel(_deadline: float, _program: str) -> Iterator[Any]:
        yield SimpleNamespace(settimeout=lambda _seconds: None)

    monkeypatch.setattr(channel_io, "converse", lambda *_words: (b"", ANSWER) if in_errors else (ANSWER, b""))
    ssh = Ssh(Host("box", ("all",), {}, "hosts.yml:4"))
    monkeypatch.setattr(ssh, "_session", SimpleNamespace(user="root", channel=channel, close=lambda: None))
    with pytest.raises(Unreachable, match="the host takes no login as root: it wants ubuntu") as caught:
        ssh.run([command("true")])
    assert caught.value.fix == "set ansible_user: ubuntu for box (hosts.yml:4)"
