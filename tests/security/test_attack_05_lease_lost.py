"""One writer per host: the host itself compares the owner, and only its own uptime and boot id count."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rigwright.core.command import script
from rigwright.core.errors import HostError
from rigwright.engine import jobs, lease, run_owner
from rigwright.engine.boot.wait import BootWait
from rigwright.engine.lease import Lease
from tests.engine.shell_host import Host
from tests.host_runs import host_run

WORK = script("echo works", long=True, timeout_s=60)


@contextmanager
def another(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside it this process is a controller on another machine."""
    with monkeypatch.context() as patch:
        patch.setattr(run_owner, "_machine", lambda: "elsewhere-2f.402")
        yield


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Host, Lease]:
    """Returns a host that another machine's run has taken, 20 s after its boot."""
    host = Host(tmp_path)
    with another(monkeypatch):
        return host, lease.take(host, "host", "1")


def is_free(host: Host) -> bool:
    """Whether this machine can take the host; it then has it."""
    before, error = host.lease.read_bytes(), None
    try:
        lease.take(host, "host", "2")
    except HostError as caught:
        error = caught
    if error is not None:
        assert re.match("run 1 by .*@elsewhere is changing it", error.found)
        assert host.lease.read_bytes() == before
    return error is None


@pytest.mark.parametrize("stepped_s", [700, -365 * 86400, 365 * 86400])
def test_a_stepped_clock_frees_nothing_and_blocks_nobody(
    taken: tuple[Host, Lease], stepped_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the host's clock, nor the times of its files, nor the controller's clock count."""
    host, _ = taken
    now = host.lease.stat().st_mtime + stepped_s
    (host.folder / "bin" / "date").write_text(f"#!/bin/sh\necho {now:.0f}\n")
    (host.folder / "bin" / "date").chmod(0o755)
    monkeypatch.setattr("time.time", lambda: now)
    for time in (now, 0, 2**33):
        os.utime(host.lease, (time, time))
        host.uptime(20 + lease.EXPIRES_S - 1)
        assert not is_free(host)
    host.uptime(20 + lease.EXPIRES_S)
    assert is_free(host)


def test_two_runs_with_one_id_are_two(taken: tuple[Host, Lease]) -> None:
    """Two controllers can give their runs the same id, which is made of the time and eight digits."""
    host, first = taken
    with pytest.raises(HostError, match=r"run 1 by .*@elsewhere is changing it"):
        lease.take(host, "host", "1")
    host.uptime(9999)
    lease.take(host, "host", "1")
    with pytest.raises(HostError, match=r"run 1 by \S+ has taken this host"):
        first.renew()


def test_a_lease_is_renewed_by_its_owner_only(taken: tuple[Host, Lease]) -> None:
    host, first = taken
    host.uptime(500)
    first.renew()
    host.uptime(1000)
    assert not is_free(host)
    first.renew(3600)  # commands that may take an hour
    host.uptime(1000 + 3600)
    assert not is_free(host)
    host.uptime(1000 + 3661)
    assert is_free(host)
    with pytest.raises(HostError, match=r"run 2 by \S+ has taken this host"):
        first.renew()
    before = host.lease.read_bytes()
    first.release()
    assert host.lease.read_bytes() == before


def test_a_boot_belongs_to_the_run_that_awaits_it(taken: tuple[Host, Lease]) -> None:
    """However long the host was away: after its boot the run has the lease's length to come back."""
    host, first = taken
    first.renew(900)
    host.boot("22222222-second", up_s=30)
    assert not is_free(host)
    host.uptime(2 + 959)  # its init started after two seconds
    assert not is_free(host)
    first.renew()
    host.uptime(2 + 959 + 599)
    assert not is_free(host)


def test_a_run_that_comes_back_from_its_boot_renews_first(taken: tuple[Host, Lease]) -> None:
    host, first = taken
    run = host_run(host, "1", host.host)
    wait = BootWait(run, first, "11111111-first", 900)
    assert not wait._is_back(wait._look())  # it is still going down
    host.boot("22222222-second", up_s=30)
    assert wait._is_back(wait._look())
    assert host.lease.read_text().endswith("22222222-second 30 960\n")
    host.uptime(9999)
    assert is_free(host)
    with pytest.raises(HostError, match="has taken this host"):
        wait._look()


@pytest.mark.parametrize("up_s", [2 + lease.EXPIRES_S, 5 * 86400])
def test_a_lease_of_an_earlier_boot_ends(taken: tuple[Host, Lease], up_s: float) -> None:
    host, first = taken
    host.boot("22222222-second", up_s)
    assert is_free(host)
    with pytest.raises(HostError, match="has taken this host"):
        first.renew()


def test_an_uptime_in_the_future_blocks_nobody(taken: tuple[Host, Lease]) -> None:
    host, _ = taken
    lines = host.lease.read_text().splitlines()
    host.lease.write_text(f"{lines[0]}\n11111111-first 99999999 600\n")
    host.uptime(500)
    assert not is_free(host)
    host.uptime(700)
    assert is_free(host)


def test_a_container_whose_uptime_is_its_own_does_not_end_a_lease_early(taken: tuple[Host, Lease]) -> None:
    """There /proc/1/stat counts from the boot of the machine, and /proc/uptime from that of the container."""
    host, _ = taken
    host.boot("22222222-second", 30)
    (host.folder / "init").write_text((host.folder / "init").read_text().replace(" 200 ", " 99999900 "))
    assert not is_free(host)
    host.uptime(700)
    assert is_free(host)


@pytest.mark.parametrize("state", ["units", "silent"])
def test_an_expired_lease_is_not_free_while_a_job_runs(taken: tuple[Host, Lease], state: str) -> None:
    host, _ = taken
    host.uptime(9999)
    host.state(state, "rigwright-job-driver-0.service loaded deactivating stop-sigterm x\n")
    assert not is_free(host)


def test_a_job_does_not_start_without_the_lease(taken: tuple[Host, Lease]) -> None:
    host, first = taken
    host.uptime(9999)
    second = lease.take(host, "host", "2")
    with pytest.raises(HostError, match=r"run 2 by \S+ has taken this host"):
        jobs.run(host, first.owner, "Driver", 0, WORK, print)
    assert host.starts == 0
    second.release()
    with pytest.raises(HostError, match="the lease of this run is gone"):
        jobs.run(host, first.owner, "Driver", 0, WORK, print)
    assert host.starts == 0
    assert not (host.folder / "var" / "runs").exists()


def test_watching_a_job_renews_only_its_own_lease(taken: tuple[Host, Lease]) -> None:
    host, first = taken
    host.state("never-ends", "")
    polls = iter(range(9))

    def after(_result: object) -> None:
        match next(polls):
            case 0:  # the job was started
                host.uptime(500)
            case 1:
                assert " 500 " in host.lease.read_text()
                host.lease.write_text("2 ada@nowhere-2f.1 4711 1\n11111111-first 500 600\n")
                host.uptime(1000)

    host.after = after
    with pytest.raises(
        HostError, match="another run has taken this host, or the lease was removed; the job goes on there"
    ):
        jobs.run(host, first.owner, "Driver", 0, WORK, print)
    assert host.lease.read_text().endswith("11111111-first 500 600\n")


def test_a_process_that_ended_is_told_from_one_of_another_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of this machine that ended frees its lease at once; process numbers of a container say nothing here."""
    host, first = Host(tmp_path), subprocess.Popen(["sleep", "60"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: first.pid)
        lease.take(host, "host", "1")
    with pytest.raises(HostError, match="run 1 by"):
        lease.take(host, "host", "2")
    first.kill()
    first.wait()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "readlink", lambda _path: Path("pid:[4711]"))
        with pytest.raises(HostError, match="run 1 by"):
            lease.take(host, "host", "2")
    lease.take(host, "host", "2")
    assert host.lease.read_text().startswith("2 ")


@pytest.mark.parametrize("name", ["ada lovelace", "a\nb", "", None])
def test_a_strange_user_name_makes_no_lease_that_cannot_be_read(
    tmp_path: Path, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def user() -> str:
        if name is None:
            raise KeyError("getpwuid(): uid not found: 4711")
        return name

    monkeypatch.setattr("getpass.getuser", user)
    host = Host(tmp_path)
    with another(monkeypatch):
        lease.take(host, "host", "1")
    with pytest.raises(HostError, match="run 1 by"):
        lease.take(host, "host", "2")
