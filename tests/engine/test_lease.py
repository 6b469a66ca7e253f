"""The error of a run that meets the lease of another run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rigwright.core.command import Result
from rigwright.core.errors import HostError
from rigwright.engine import lease
from tests.engine.shell_host import Host
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


def test_the_last_twenty_runs_stay_on_the_host(tmp_path: Path) -> None:
    host = Host(tmp_path)
    held = lease.take(host, "host", "20261122-0900")
    for number in range(25):
        run = tmp_path / "var" / "runs" / f"run-{number}"
        (run / "before/etc").mkdir(parents=True)
        os.utime(run, (number, number))
    host.state("units", "rigwright-job-x.service loaded active running\n")
    held.release()
    assert (len(list((tmp_path / "var/runs").iterdir())), host.lease.exists()) == (25, True)  # a job is at work
    host.state("units", "")
    held.release()
    assert sorted(run.name for run in (tmp_path / "var/runs").iterdir()) == sorted(
        f"run-{number}" for number in range(5, 25)
    )
    assert not host.lease.exists()
