"""A login that the host answers with the name of another user, as cloud images do for root; commands on this
machine."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rigwright.core.command import command, script
from rigwright.core.errors import HostError, Interrupted, Unreachable
from rigwright.inventory.model import Host
from rigwright.ssh import channel_io
from rigwright.ssh.local import Local
from rigwright.ssh.transport import Ssh

ANSWER = b'Please login as the user "ubuntu" rather than the user "root".\n\n'


@pytest.mark.parametrize("in_errors", [False, True])
def test_another_user_is_named_by_the_host(monkeypatch: pytest.MonkeyPatch, in_errors: bool) -> None:
    @contextlib.contextmanager
    def channel(_deadline: float, _program: str) -> Iterator[Any]:
        yield SimpleNamespace(settimeout=lambda _seconds: None)

    monkeypatch.setattr(channel_io, "converse", lambda *_words: (b"", ANSWER) if in_errors else (ANSWER, b""))
    ssh = Ssh(Host("box", ("all",), {}, "hosts.yml:4"))
    monkeypatch.setattr(
        ssh, "_session", SimpleNamespace(user="root", channel=channel, close=lambda: None, errors=(OSError,))
    )
    with pytest.raises(Unreachable, match="the host takes no login as root: it wants ubuntu") as caught:
        ssh.run([command("true")])
    assert caught.value.fix == "set ansible_user: ubuntu for box (hosts.yml:4)"


def local() -> Local:
    """Returns a transport that runs commands on this machine as this user."""
    return Local(Host("here", ("all",), {"ansible_connection": "local"}), root=False)


def test_a_script_of_this_machine_that_is_abandoned_goes_on(tmp_path: Path) -> None:
    text = ': >"$1/begun"; while [ ! -e "$1/go" ]; do sleep 0.05; done; : >"$1/ended"'
    transport, ended = local(), list[BaseException]()

    def run() -> None:
        try:
            transport.run([script(text, str(tmp_path), timeout_s=60)])
        except Interrupted as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    _await(tmp_path / "begun")
    transport.abandon()
    thread.join(20)
    assert ended
    with pytest.raises(Interrupted):
        transport.run([command("true")])
    (tmp_path / "go").touch()
    _await(tmp_path / "ended")


def test_ctrl_c_at_the_terminal_does_not_reach_a_script_of_this_machine() -> None:
    assert int(local()._exchange(b"ps -o pgid= $$", "", 20)) != os.getpgid(0)


def test_a_script_of_this_machine_that_does_not_return() -> None:
    with pytest.raises(HostError, match=r"no answer within 0\.5 s"):
        local()._exchange(b"exec sleep 20", "", 0.5)


def _await(file: Path) -> None:
    ends = time.monotonic() + 20
    while not file.exists():
        assert time.monotonic() < ends
        time.sleep(0.02)
