"""The error of a run that meets the lease of another run."""

from __future__ import annotations

import pytest

from rigwright.core.command import Result
from rigwright.core.errors import HostError
from rigwright.engine import lease
from tests.ssh.fake_transport import FakeTransport


def test_the_message_about_another_run() -> None:
    transport = FakeTransport(lambda _cmd: Result(75, b"12 600  20261121-1000 ada@gpu-elsewhere-2f.402 4711 1\n"))
    with pytest.raises(HostError) as caught:
        lease.take(transport, "servbadge", "20261122-0900")
    assert str(caught.value) == (
        "servbadge: run 20261121-1000 by ada@gpu-elsewhere is changing it (its lease was renewed 12 s ago)\n"
        "  expected: one run at a time\n"
        "  fix:      wait until it is done, or until its lease expires, in 588 s unless it renews it; then run the same command"
    )


def test_the_message_about_a_lease_that_cannot_be_written() -> None:
    transport = FakeTransport(lambda _cmd: Result(1, b"", b"mkdir: Read-only file system\n"))
    with pytest.raises(HostError) as caught:
        lease.take(transport, "servbadge", "20261122-0900")
    assert str(caught.value) == (
        "servbadge: the lease cannot be taken: mkdir: Read-only file system\n"
        "  expected: a writable /var/lib\n"
        "  fix:      df -h /var"
    )
