"""The limit on the output of a script."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from paramiko import Channel

from rigwright.core.errors import HostError
from rigwright.inventory.model import Host
from rigwright.ssh import channel_io


class Endless:
    """A channel whose output does not end, and begins with `first`."""

    closed = False

    def __init__(self, first: bytes = b"") -> None:
        self.first = first

    def recv(self, size: int) -> bytes:
        first, self.first = self.first, b""
        return first or b"y" * size

    def recv_ready(self) -> bool:
        return True

    def recv_stderr_ready(self) -> bool:
        return False

    def exit_status_ready(self) -> bool:
        return False

    def sendall(self, data: bytes) -> None: ...

    def settimeout(self, seconds: float) -> None: ...


def until(channel: Channel, deadline: float, host: Host) -> object:
    """Reads the channel while it waits for a text."""
    return channel_io.until(channel, b"ready", b"password", deadline, host)


def converse(channel: Channel, deadline: float, host: Host) -> object:
    """Reads the channel after a script was sent."""
    return channel_io.converse(channel, b"", "nonce", deadline, host)


@pytest.mark.parametrize(("read", "size"), [(until, "64 KiB"), (converse, "64 KiB")])
def test_the_message_about_an_output_without_an_end(
    read: Callable[[object, float, Host], object], size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_io, "MOST_BYTES", 2 << 20)
    host = Host("servbadge", (), {"ansible_host": "192.0.2.10"})
    with pytest.raises(HostError) as caught:
        read(Endless(), time.monotonic() + 30, host)
    assert str(caught.value) == (
        f"servbadge: its output is longer than {size} and has not ended\n"
        f"  expected: an answer of at most {size}\n"
        "  fix:      ssh 192.0.2.10 sudo -n true, and look at what it prints"
    )


def test_an_answer_that_has_begun_may_be_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_io, "MOST_BYTES", 2 << 20)
    with pytest.raises(HostError, match="longer than 2 MiB"):
        converse(Endless(b"nonce codes 0\n"), time.monotonic() + 30, Host("servbadge", (), {}))  # type: ignore[arg-type]
